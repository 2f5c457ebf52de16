// fake_mps::encode runs a program that a test writes down: through the planner's record, the seam
// and the extension's own runner. One line each:
//   kernel FAMILY NAME [ID=VALUE ..] | barrier | buffer INDEX NUMBER | bytes INDEX HEX
//   dispatch X Y Z THREADS
#include <torch/library.h>

#include <sstream>

#include "runner.h"

namespace fake {
namespace {

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

tmf::plan::Kernel read_kernel(std::istringstream& words) {
  tmf::plan::Kernel kernel;
  words >> kernel.family >> kernel.name;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    kernel.constants[std::stoul(word.substr(0, equals))] = std::stoul(word.substr(equals + 1));
  }
  return kernel;
}

tmf::plan::Program read_program(const std::string& text, size_t buffers) {
  tmf::plan::Program program;
  for (uint32_t i = 0; i < buffers; ++i) program.buffers.push_back({"", i, 0});
  tmf::plan::Dispatch next{};
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "barrier") next.barrier_before = true;
    if (what == "kernel") next.kernel = read_kernel(words);
    if (what == "buffer" || what == "bytes") {
      tmf::plan::Argument argument{};
      words >> argument.index;
      if (what == "buffer") {
        words >> argument.buffer;
      } else {
        std::string hex;
        words >> hex;
        argument.buffer = -1;
        argument.bytes = from_hex(hex);
      }
      next.arguments.push_back(argument);
    }
    if (what == "dispatch") {
      words >> next.grid[0] >> next.grid[1] >> next.grid[2] >> next.threads;
      program.dispatches.push_back(std::exchange(next, {}));
    }
  }
  return program;
}

void encode(const std::string& text, const std::vector<at::Tensor>& tensors) {
  tmf::Runner* runner = tmf::runner_for(c10::kMPS);
  TORCH_CHECK(runner != nullptr, "no runner for mps is loaded");
  std::vector<tmf::BufferView> views;
  for (const at::Tensor& tensor : tensors) views.push_back(runner->view(tensor));
  runner->run(read_program(text, tensors.size()), views);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fake_mps, m) {
  m.def("encode(str program, Tensor[] buffers) -> ()");
  m.impl("encode", c10::DispatchKey::CompositeExplicitAutograd,
         [](std::string_view text, const std::vector<at::Tensor>& tensors) {
           encode(std::string(text), tensors);
         });
}

}  // namespace fake
