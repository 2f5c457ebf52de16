#include "listing.h"

#include <array>
#include <sstream>

#include "call.h"
#include "tasks.h"

namespace tmf::plan {
namespace {

constexpr std::array<const char*, 6> kRoles{"weight",  "state",   "activation",
                                            "scratch", "control", "unused"};
constexpr std::array<const char*, 4> kAccesses{"none", "read", "write", "read_write"};

template <size_t N>
uint8_t index_in(const std::array<const char*, N>& names, const std::string& name) {
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<uint8_t>(i);
  }
  throw Refusal("listing", "'" + name + "'", "a name of program.h");
}

void write_tasks(std::ostream& out, const TaskProgram& tasks) {
  out << "tasks " << tasks.counters << ' ' << tasks.workers << '\n';
  for (const TaskRecord& r : tasks.records) {
    out << "task " << r.stage << ' ' << r.tile << ' ' << r.part << ' ' << r.first_wait << ' '
        << r.waits << ' ' << r.first_signal << ' ' << r.signals << '\n';
  }
  for (const TaskEdge& e : tasks.edges) out << "edge " << e.counter << ' ' << e.count << '\n';
  for (const Touch& t : tasks.touches) {
    out << "touch " << t.task << ' ' << t.buffer << ' ' << (t.write ? "write" : "read") << ' '
        << t.wait << ' ' << t.offset << ' ' << t.rows << ' ' << t.pitch << ' ' << t.bytes << '\n';
  }
  for (double us : tasks.times_us) out << "time " << us << '\n';
}

// Whether the line is one of a task program; then it is added to `tasks`.
bool read_task_line(const std::string& kind, std::istream& in, TaskProgram& tasks) {
  if (kind == "task") {
    TaskRecord r{};
    in >> r.stage >> r.tile >> r.part >> r.first_wait >> r.waits >> r.first_signal >> r.signals;
    tasks.records.push_back(r);
  } else if (kind == "edge") {
    TaskEdge e{};
    in >> e.counter >> e.count;
    tasks.edges.push_back(e);
  } else if (kind == "touch") {
    Touch t{};
    std::string access;
    in >> t.task >> t.buffer >> access >> t.wait >> t.offset >> t.rows >> t.pitch >> t.bytes;
    t.write = index_in(kAccesses, access) == static_cast<uint8_t>(Access::write);
    tasks.touches.push_back(t);
  } else if (kind == "time") {
    double us = 0;
    in >> us;
    tasks.times_us.push_back(us);
  } else {
    return false;
  }
  return true;
}

std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

}  // namespace

std::string to_hex(const std::byte* data, size_t size) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < size; ++i) {
    const auto value = static_cast<unsigned>(data[i]);
    out += digits[value >> 4];
    out += digits[value & 15];
  }
  return out;
}

std::string to_listing(const Program& program) {
  std::ostringstream out;
  if (program.overlap) out << "overlap\n";
  for (const Buffer& b : program.buffers) {
    out << "buffer " << b.name << ' ' << b.storage << ' ' << b.bytes << ' '
        << kRoles[static_cast<size_t>(b.role)] << ' ' << b.given << '\n';
  }
  for (const Dispatch& d : program.dispatches) {
    out << "dispatch " << d.stage << ' ' << d.kernel.family << ' ' << d.kernel.name << ' '
        << d.grid[0] << ' ' << d.grid[1] << ' ' << d.grid[2] << ' ' << d.threads << ' '
        << d.threadgroup_bytes << ' ' << d.barrier_before << ' ' << d.product << ' '
        << d.estimate_us << '\n';
    for (const auto& [id, value] : d.kernel.constants) {
      out << "constant " << id << ' ' << value << '\n';
    }
    for (const Argument& a : d.arguments) {
      if (a.buffer < 0) {
        out << "bytes " << a.index << ' ' << to_hex(a.bytes.data(), a.bytes.size()) << '\n';
        continue;
      }
      out << "view " << a.index << ' ' << a.buffer << ' '
          << kAccesses[static_cast<size_t>(a.access)] << ' ' << a.offset << ' ' << a.extent << ' '
          << a.read << ' ' << a.written << '\n';
    }
    if (d.tasks) write_tasks(out, *d.tasks);
  }
  return out.str();
}

Program from_listing(std::string_view text) {
  Program program;
  std::shared_ptr<TaskProgram> tasks;
  std::istringstream lines{std::string(text)};
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream in(line);
    std::string kind, name;
    in >> kind;
    const bool inside = kind == "constant" || kind == "view" || kind == "bytes" || kind == "tasks";
    if (inside && program.dispatches.empty()) throw Refusal("listing", line, "a dispatch first");
    if (kind == "overlap") {
      program.overlap = true;
    } else if (kind == "buffer") {
      Buffer b;
      in >> b.name >> b.storage >> b.bytes >> name >> b.given;
      b.role = static_cast<Role>(index_in(kRoles, name));
      program.buffers.push_back(std::move(b));
    } else if (kind == "dispatch") {
      Dispatch d;
      in >> d.stage >> d.kernel.family >> d.kernel.name >> d.grid[0] >> d.grid[1] >> d.grid[2] >>
          d.threads >> d.threadgroup_bytes >> d.barrier_before >> d.product >> d.estimate_us;
      program.dispatches.push_back(std::move(d));
    } else if (kind == "constant") {
      uint32_t id = 0, value = 0;
      in >> id >> value;
      program.dispatches.back().kernel.constants[id] = value;
    } else if (kind == "view") {
      Argument a{.index = 0};
      in >> a.index >> a.buffer >> name >> a.offset >> a.extent >> a.read >> a.written;
      a.access = static_cast<Access>(index_in(kAccesses, name));
      if (a.buffer < 0 || static_cast<size_t>(a.buffer) >= program.buffers.size()) {
        throw Refusal("listing", line, "a buffer that is listed");
      }
      program.dispatches.back().arguments.push_back(std::move(a));
    } else if (kind == "bytes") {
      Argument a{.index = 0};
      in >> a.index >> name;
      a.bytes = from_hex(name);
      program.dispatches.back().arguments.push_back(std::move(a));
    } else if (kind == "tasks") {
      tasks = std::make_shared<TaskProgram>();
      in >> tasks->counters >> tasks->workers;
      program.dispatches.back().tasks = tasks;
    } else if (tasks == nullptr || !read_task_line(kind, in, *tasks)) {
      throw Refusal("listing", line, "a line that listing.h names");
    }
    if (in.fail()) throw Refusal("listing", line, "the words that listing.h names");
  }
  return program;
}

}  // namespace tmf::plan
