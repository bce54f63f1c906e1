//! Description of the machine.

use softswap_view::report::Machine;

pub fn describe() -> Machine {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.strip_prefix("model name"));
    let name = names.filter_map(|rest| rest.split_once(':')).map(|(_, name)| name.trim());
    Machine {
        processor: name.take(1).collect(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        dram_bytes: softswap_sys::memory::dram_bytes(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
    }
}
