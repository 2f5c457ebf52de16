#include "kernels.h"

#include <mutex>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <tuple>

namespace fake {
namespace {

// Given by Python: compiles a text and writes what it made, or "error" and a message, to `out`.
using Compiler = void (*)(const char* text, const char* constants, uint32_t language, char* out,
                          uint64_t capacity);
Compiler compiler = nullptr;
MhOptions options{};

template <typename Function>
Function function_at(uint64_t address) {
  return reinterpret_cast<Function>(address);
}

CompiledKernels parse(const std::string& answer) {
  CompiledKernels kernels;
  CompiledKernel* kernel = nullptr;
  std::istringstream lines(answer);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what, name;
    words >> what;
    if (what == "error") throw std::runtime_error(answer.substr(answer.find('\n') + 1));
    if (what == "kernel" && words >> name) {
      kernel = &kernels[name];
      uint64_t launch = 0, entry = 0;
      words >> launch >> entry >> kernel->max_threads;
      kernel->launch = function_at<decltype(&mh_launch)>(launch);
      kernel->entry = function_at<MhEntry>(entry);
    }
    if (what == "buffer") {
      BufferParameter p{};
      words >> p.index >> p.size >> p.align >> p.read_only >> p.reference >> p.optional;
      kernel->buffers.push_back(p);
    }
  }
  return kernels;
}

}  // namespace

const CompiledKernels& compile(const std::string& text, const Constants& constants,
                               uint32_t language) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, Constants, uint32_t>, CompiledKernels> made;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto key = std::tuple(text, constants, language);
  if (const auto found = made.find(key); found != made.end()) return found->second;
  std::string values;
  for (const auto& [id, value] : constants) {
    values += std::to_string(id) + "=" + std::to_string(value) + " ";
  }
  std::string answer(1 << 16, '\0');
  compiler(text.c_str(), values.c_str(), language, answer.data(), answer.size());
  answer.resize(answer.find('\0'));
  return made.emplace(key, parse(answer)).first->second;
}

std::map<uint32_t, bool> declared_constants(const std::string& text) {
  static const std::regex declaration(
      R"(constant\s+(\w+)\s+\w+\s*\[\[\s*function_constant\s*\(\s*(\d+))");
  std::map<uint32_t, bool> found;
  for (std::sregex_iterator at(text.begin(), text.end(), declaration), end; at != end; ++at) {
    found[static_cast<uint32_t>(std::stoul((*at)[2]))] = (*at)[1] == "bool";
  }
  return found;
}

std::string run(const CompiledKernel& kernel, const std::array<uint64_t, 3>& grid,
                const std::array<uint64_t, 3>& group, const std::vector<Span>& buffers) {
  std::vector<std::string> names;
  for (size_t i = 0; i < buffers.size(); ++i) names.push_back("buffer(" + std::to_string(i) + ")");
  std::vector<MhBuffer> bound;
  for (size_t i = 0; i < buffers.size(); ++i) {
    bound.push_back({buffers[i].data, buffers[i].bytes, names[i].c_str(), 0});
  }
  MhLaunch launch{};
  launch.entry = kernel.entry;
  launch.code = reinterpret_cast<const void*>(kernel.entry);
  for (int i = 0; i < 3; ++i) {
    launch.grid[i] = static_cast<u32>(grid[i]);
    launch.group[i] = static_cast<u32>(group[i]);
  }
  launch.buffer_count = static_cast<u32>(bound.size());
  launch.buffers = bound.data();
  launch.options = options;
  MhCounts counts{};
  std::vector<MhBufferCounts> per_buffer(bound.size() + 1);
  std::string text(1 << 16, '\0');
  const u32 faults = kernel.launch(&launch, &counts, per_buffer.data(), text.data(),
                                   static_cast<u32>(text.size()));
  text.resize(text.find('\0'));
  return faults == 0 ? "" : text;
}

}  // namespace fake

extern "C" __attribute__((visibility("default"))) void fake_set_compiler(
    void (*given)(const char*, const char*, uint32_t, char*, uint64_t)) {
  fake::compiler = given;
}

extern "C" __attribute__((visibility("default"))) void fake_set_options(const MhOptions* given) {
  fake::options = *given;
}
