#include "shader_text.h"

#include <array>
#include <cctype>
#include <stdexcept>
#include <utility>

namespace tmf {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kIo{
    {{"f16", "16"}, {"bf16", "17"}, {"f32", "32"}}};
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kSizes{
    {{"dk", "TMF_DK"}, {"dv", "TMF_DV"}, {"nt", "TMF_NT"}, {"u", "TMF_U"}}};

// The first "_<io>_f32_" of a name: where it stands and what TMF_IO is for it.
std::pair<size_t, std::string_view> find_io(std::string_view kernel) {
  for (const auto& [io, number] : kIo) {
    const std::string field = "_" + std::string(io) + "_f32_";
    if (const size_t at = kernel.find(field); at != std::string_view::npos) {
      return {at + field.size(), number};
    }
  }
  throw std::invalid_argument(
      "kernel: '" + std::string(kernel) +
      "' is not a kernel name; accepted: tmf_<op>_<io>_f32_<tile>__<scope>");
}

std::string define(std::string_view name, std::string_view value) {
  return "#define " + std::string(name) + " " + std::string(value) + "\n";
}

template <typename Test>
std::string_view take(std::string_view& text, Test&& test) {
  size_t n = 0;
  while (n < text.size() && test(static_cast<unsigned char>(text[n]))) ++n;
  const std::string_view taken = text.substr(0, n);
  text.remove_prefix(n);
  return taken;
}

}  // namespace

const ShaderFamily& shader_family(std::string_view name) {
  std::string known;
  for (const ShaderFamily& family : shader_families()) {
    if (family.name == name) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.name);
  }
  throw std::invalid_argument("family: got '" + std::string(name) + "'; accepted: " + known);
}

std::string kernel_macros(std::string_view kernel) {
  const auto [tile_at, io] = find_io(kernel);
  std::string macros = define("TMF_IO", io);
  std::string_view tile = kernel.substr(tile_at, kernel.find("__", tile_at) - tile_at);
  while (!tile.empty()) {
    const std::string_view key = take(tile, [](int c) { return std::isalpha(c) != 0; });
    const std::string_view value = take(tile, [](int c) { return std::isdigit(c) != 0; });
    if (key.empty() && value.empty()) break;
    for (const auto& [name, macro] : kSizes) {
      if (name == key) macros += define(macro, value.empty() ? "1" : value);
    }
  }
  return macros;
}

std::string specialised_text(const plan::Kernel& kernel) {
  return kernel_macros(kernel.name) + std::string(shader_family(kernel.family).text);
}

}  // namespace tmf
