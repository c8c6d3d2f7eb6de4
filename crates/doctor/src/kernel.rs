//! Settings of the kernel that change how a node writes, how its memory behaves, and how clients connect.
//!
//! Owns: the settings, how they are read, and the rules that judge them. Does not own: limits of the process
//! (`limits`), or the disk (`storage`, `device`).

use std::time::Duration;

use serde::Serialize;

use crate::{Findings, SyncTimes, System, space::shown, storage::micros};

/// Number of connections that a server asks the kernel to queue at each of its ports.
const BACKLOG: u64 = 1024;
/// Threshold for a finding about unwritten data. The kernel holds back up to a maximum of unwritten file data; the
/// doctor reports it if the disk needs longer than this time to write it all, because a sync may wait that long.
const LONG_WRITEBACK: Duration = Duration::from_secs(10);
/// Lowest value of `vm.swappiness` that the doctor reports, if the machine has swap space. 60 is the kernel's default.
const EAGER_SWAPPING: u64 = 10;

/// Settings of the kernel. A setting is `None` if the system does not report it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// Release of the kernel, such as `6.18.5`.
    pub release: Option<String>,
    /// Bytes of unwritten file data at which the kernel makes writers wait (`vm.dirty_bytes`, or `vm.dirty_ratio`
    /// percent of the memory).
    pub dirty_bytes: Option<u64>,
    /// Bytes of unwritten file data at which the kernel begins to write in the background.
    pub dirty_background_bytes: Option<u64>,
    /// Age, in hundredths of a second, from which the kernel's background threads write unwritten file data to the
    /// disk.
    pub dirty_expire_centisecs: Option<u64>,
    /// Interval, in hundredths of a second, at which the kernel's background threads look for old unwritten file data.
    /// 0 means that they never do.
    pub dirty_writeback_centisecs: Option<u64>,
    /// Use of transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
    /// Effort of the kernel to find a huge page when a program first uses memory: `always`, `defer`, `defer+madvise`,
    /// `madvise` or `never`.
    pub huge_pages_defrag: Option<String>,
    /// Preference for swapping memory over dropping cached files (`vm.swappiness`).
    pub swappiness: Option<u64>,
    /// Size of the machine's swap space in bytes.
    pub swap_bytes: Option<u64>,
    /// Longest queue of connections that a program may request (`net.core.somaxconn`).
    pub somaxconn: Option<u64>,
    /// Policy for memory that programs allocate and do not use yet: 0, 1 or 2 (`vm.overcommit_memory`).
    pub overcommit: Option<u64>,
}

impl Kernel {
    /// Reads the kernel settings. `memory_bytes` is the size of the machine's memory. It is needed because some
    /// settings are percentages of the memory.
    #[must_use]
    pub fn read(system: &System, memory_bytes: Option<u64>) -> Self {
        let vm = |name: &str| system.number(&format!("proc/sys/vm/{name}"));
        // The kernel has this setting in bytes and in percent; the form that is not in use is 0. The percentage applies
        // to the memory that could hold unwritten data, a little less than all memory.
        let dirty = |bytes: &str, ratio: &str| match vm(bytes) {
            Some(bytes) if bytes > 0 => Some(bytes),
            _ => Some(memory_bytes? / 100 * vm(ratio)?.min(100)),
        };
        let huge = |name: &str| system.chosen(&format!("sys/kernel/mm/transparent_hugepage/{name}"));
        Self {
            release: system.text("proc/sys/kernel/osrelease"),
            dirty_bytes: dirty("dirty_bytes", "dirty_ratio"),
            dirty_background_bytes: dirty("dirty_background_bytes", "dirty_background_ratio"),
            dirty_expire_centisecs: vm("dirty_expire_centisecs"),
            dirty_writeback_centisecs: vm("dirty_writeback_centisecs"),
            huge_pages: huge("enabled"),
            huge_pages_defrag: huge("defrag"),
            swappiness: vm("swappiness"),
            swap_bytes: system.field("proc/meminfo", "SwapTotal:").map(|kib| kib * 1024),
            somaxconn: system.number("proc/sys/net/core/somaxconn"),
            overcommit: vm("overcommit_memory"),
        }
    }
}

/// Adds a finding for each unfavourable setting. `syncs` has the measured speed of the disk; `None` if nothing was
/// measured.
pub(crate) fn judge(kernel: &Kernel, syncs: Option<&SyncTimes>, found: &mut Findings) {
    writeback(kernel, syncs, found);
    memory(kernel, found);
    if let Some(queue) = kernel.somaxconn.filter(|queue| *queue < BACKLOG) {
        found.weakness(
            "short_accept_queue",
            format!("net.core.somaxconn is {queue}; a server asks for {BACKLOG}"),
            "when many clients connect at the same moment, some wait for a second or more",
            format!("`sysctl -w net.core.somaxconn={BACKLOG}` or more"),
        );
    }
}

fn writeback(kernel: &Kernel, syncs: Option<&SyncTimes>, found: &mut Findings) {
    if kernel.dirty_writeback_centisecs == Some(0) {
        found.weakness(
            "no_writeback",
            "vm.dirty_writeback_centisecs is 0: the kernel writes old data only when memory is short".to_owned(),
            "writes at the level `os` survive a crash of the machine only by luck, and the next sync of a file has more to do",
            "`sysctl -w vm.dirty_writeback_centisecs=500`, the default",
        );
    }
    if let (Some(bytes), Some(syncs)) = (kernel.dirty_bytes, syncs) {
        let time =
            Duration::try_from_secs_f64(bytes as f64 / syncs.large_bytes_per_second.max(1.0)).unwrap_or(Duration::MAX);
        if time > LONG_WRITEBACK {
            found.note(
                "much_unwritten_data",
                format!(
                    "the kernel may collect {} of unwritten data, which this disk needs {} to write at the measured {}/s",
                    shown(bytes),
                    micros(time.as_secs_f64() * 1e6),
                    shown(syncs.large_bytes_per_second as u64)
                ),
                "a node paces its own tables; but when another program (a backup, a copy) fills this, syncs wait behind it",
                "if other programs write to this disk, set vm.dirty_bytes and vm.dirty_background_bytes to the bytes \
                 that the disk writes in a second or two",
            );
        }
    }
}

fn memory(kernel: &Kernel, found: &mut Findings) {
    if kernel.huge_pages.as_deref() == Some("always") {
        found.weakness(
            "huge_pages_always",
            "transparent huge pages are on for all memory (`always`)".to_owned(),
            "the first write to a huge page clears 2 MiB, and a process keeps memory that it has freed in parts; both show as \
             pauses and as memory above the configured bounds. A node asks for huge pages where they help",
            "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`",
        );
    }
    if kernel.huge_pages_defrag.as_deref() == Some("always") && kernel.huge_pages.as_deref() != Some("never") {
        found.weakness(
            "huge_pages_defrag",
            "the kernel moves memory around at each fault that wants a huge page (`defrag` is `always`)".to_owned(),
            "allocations can pause for milliseconds",
            "`echo defer+madvise > /sys/kernel/mm/transparent_hugepage/defrag`",
        );
    }
    if kernel.swap_bytes.is_some_and(|bytes| bytes > 0)
        && let Some(swappiness) = kernel.swappiness.filter(|swappiness| *swappiness > EAGER_SWAPPING)
    {
        found.weakness(
            "swapping",
            format!("vm.swappiness is {swappiness}, and the machine has {} of swap", shown(kernel.swap_bytes.unwrap_or(0))),
            "caches and memtables may be moved to the disk while the kernel keeps cached files: reads from memory then take \
             as long as reads from the disk",
            "`sysctl -w vm.swappiness=1`, or run the node in a control group with memory.swap.max=0",
        );
    }
    if kernel.overcommit == Some(2) {
        found.weakness(
            "strict_overcommit",
            "vm.overcommit_memory is 2: the kernel counts memory that is reserved and not used".to_owned(),
            "an allocation can fail, which ends the node, while memory is free",
            "`sysctl -w vm.overcommit_memory=0`, the default, or raise vm.overcommit_ratio",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sample, system::with_files};

    const GIB: u64 = 1 << 30;

    fn good() -> Kernel {
        Kernel {
            release: Some("6.18".to_owned()),
            dirty_bytes: Some(GIB),
            dirty_background_bytes: Some(GIB / 2),
            dirty_expire_centisecs: Some(3000),
            dirty_writeback_centisecs: Some(500),
            huge_pages: Some("madvise".to_owned()),
            huge_pages_defrag: Some("madvise".to_owned()),
            swappiness: Some(60),
            swap_bytes: Some(0),
            somaxconn: Some(4096),
            overcommit: Some(0),
        }
    }

    fn codes(kernel: &Kernel, bytes_per_second: f64) -> Vec<&'static str> {
        let small = Sample { count: 2, p50_micros: 100.0, p90_micros: 100.0, p99_micros: 100.0, max_micros: 100.0 };
        let syncs =
            SyncTimes { small_bytes: 4096, small, large_bytes: 1 << 20, large_bytes_per_second: bytes_per_second };
        let mut found = Findings::default();
        judge(kernel, Some(&syncs), &mut found);
        found.codes()
    }

    #[test]
    fn each_setting_is_judged() {
        let fast = GIB as f64;
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(codes(&good(), fast), Vec::<&str>::new());
        assert_eq!(codes(&good(), fast / 11.0), ["much_unwritten_data"]);
        assert_eq!(codes(&Kernel { dirty_writeback_centisecs: Some(0), ..good() }, fast), ["no_writeback"]);
        assert_eq!(codes(&Kernel { huge_pages: text("always"), ..good() }, fast), ["huge_pages_always"]);
        assert_eq!(codes(&Kernel { huge_pages_defrag: text("always"), ..good() }, fast), ["huge_pages_defrag"]);
        assert_eq!(codes(&Kernel { swap_bytes: Some(GIB), ..good() }, fast), ["swapping"]);
        assert_eq!(codes(&Kernel { swap_bytes: Some(GIB), swappiness: Some(1), ..good() }, fast), Vec::<&str>::new());
        assert_eq!(codes(&Kernel { somaxconn: Some(128), ..good() }, fast), ["short_accept_queue"]);
        assert_eq!(codes(&Kernel { overcommit: Some(2), ..good() }, fast), ["strict_overcommit"]);
        assert_eq!(codes(&Kernel::default(), fast), Vec::<&str>::new(), "nothing is known");
    }

    #[test]
    fn a_ratio_is_a_part_of_the_memory_and_bytes_win() {
        let (_root, system) = with_files(&[
            ("proc/sys/vm/dirty_bytes", "0\n"),
            ("proc/sys/vm/dirty_ratio", "20\n"),
            ("proc/sys/vm/dirty_background_bytes", "1000\n"),
            ("proc/sys/vm/dirty_background_ratio", "0\n"),
            ("proc/meminfo", "SwapTotal:   4 kB\n"),
        ]);
        let kernel = Kernel::read(&system, Some(1000));
        assert_eq!((kernel.dirty_bytes, kernel.dirty_background_bytes), (Some(200), Some(1000)));
        assert_eq!((kernel.swap_bytes, kernel.swappiness), (Some(4096), None));
    }
}
