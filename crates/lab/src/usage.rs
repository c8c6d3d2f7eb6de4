//! Resource usage of a process: CPU time, bytes read and written, context switches, memory. The values come from the
//! kernel, for this process or another one. A value that cannot be read is `None`, never a guess.
//!
//! Owns: the readings of a process, of its threads and of the machine's clocks, and their differences over a span of
//! time. Does not own: limits of a process (`control_group`), or the description of the machine (`machine`).

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Process whose resource usage is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredProcess {
    /// The calling process itself.
    Own,
    /// Another process, by its process id.
    Process(u32),
}

impl MeasuredProcess {
    /// Returns the directory below `/proc` in which the kernel describes the process.
    fn dir(self) -> String {
        match self {
            Self::Own => "/proc/self".to_owned(),
            Self::Process(id) => format!("/proc/{id}"),
        }
    }
}

/// Resources that a process has used since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time of all threads of the process, in user and system mode.
    pub cpu: Duration,
    /// Bytes that the kernel has read from the disk on behalf of the process.
    pub read_bytes: Option<u64>,
    /// Bytes that the kernel has sent towards the disk on behalf of the process.
    pub written_bytes: Option<u64>,
    /// Context switches of the threads that the process has now.
    pub switches: Option<Switches>,
    /// Largest resident memory of the process in bytes since it began, or since the last [`reset_peak`].
    pub peak_rss_bytes: Option<u64>,
}

/// Context switches: moments at which a thread stopped running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Switches {
    /// Switches of threads that had to wait, for example for a request, a lock or the disk.
    pub voluntary: u64,
    /// Switches of threads that could have continued, but had to leave the processor to other threads.
    pub involuntary: u64,
}

/// Resources that a process used between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// CPU time of all threads of the process, in seconds.
    pub cpu_seconds: f64,
    /// Bytes that the kernel read from the disk on behalf of the process.
    pub read_bytes: Option<u64>,
    /// Bytes that the kernel sent towards the disk on behalf of the process.
    pub written_bytes: Option<u64>,
    /// Context switches of the process's threads. Threads that have ended before the second reading are missing.
    pub switches: Option<Switches>,
    /// Number of fsyncs that the measured store issued; `None` if the store does not count them.
    pub fsyncs: Option<u64>,
    /// Largest resident memory of the process in bytes, since its start or since the last [`reset_peak`]. A [`Meter`]
    /// resets the peak when it begins, so it then is the peak of the measured span.
    pub peak_rss_bytes: Option<u64>,
}

impl Usage {
    /// Reads the resources that the process has used until now.
    pub fn read(whose: MeasuredProcess) -> Self {
        let dir = whose.dir();
        let cpu = match whose {
            MeasuredProcess::Own => process_cpu(),
            MeasuredProcess::Process(_) => cpu_of_stat(&dir).unwrap_or_default(),
        };
        Self {
            cpu,
            read_bytes: field(&format!("{dir}/io"), "read_bytes:"),
            written_bytes: field(&format!("{dir}/io"), "write_bytes:"),
            switches: switches(&dir),
            peak_rss_bytes: field(&format!("{dir}/status"), "VmHWM:").map(|kib| kib * 1024),
        }
    }

    /// Returns the resources that the process used since the earlier reading `before`.
    pub fn since(&self, before: &Self) -> Cost {
        let difference =
            |now: Option<u64>, then: Option<u64>| now.zip(then).map(|(now, then)| now.saturating_sub(then));
        Cost {
            cpu_seconds: self.cpu.saturating_sub(before.cpu).as_secs_f64(),
            read_bytes: difference(self.read_bytes, before.read_bytes),
            written_bytes: difference(self.written_bytes, before.written_bytes),
            switches: self.switches.zip(before.switches).map(|(now, then)| now.since(then)),
            fsyncs: None,
            peak_rss_bytes: self.peak_rss_bytes,
        }
    }
}

impl Switches {
    fn since(self, before: Self) -> Self {
        Self {
            voluntary: self.voluntary.saturating_sub(before.voluntary),
            involuntary: self.involuntary.saturating_sub(before.involuntary),
        }
    }
}

/// Returns the context switches of all threads of a process. The kernel's counts for a process contain only those of
/// its first thread.
fn switches(dir: &str) -> Option<Switches> {
    let mut sum = Switches::default();
    for thread in std::fs::read_dir(format!("{dir}/task")).ok()? {
        // A thread that has just ended has no file any more, and is left out.
        let Ok(text) = std::fs::read_to_string(thread.ok()?.path().join("status")) else { continue };
        sum.voluntary += number_after(&text, "voluntary_ctxt_switches:").unwrap_or(0);
        sum.involuntary += number_after(&text, "nonvoluntary_ctxt_switches:").unwrap_or(0);
    }
    Some(sum)
}

/// Resets the recorded peak of a process's resident memory, if the kernel permits it.
pub fn reset_peak(whose: MeasuredProcess) {
    // If the reset fails, the peak counts from the start of the process. It is then still an upper bound.
    let _ = std::fs::write(format!("{}/clear_refs", whose.dir()), "5");
}

/// Returns the resident memory of a process at this moment, in bytes.
pub fn resident_bytes(whose: MeasuredProcess) -> Option<u64> {
    field(&format!("{}/status", whose.dir()), "VmRSS:").map(|kib| kib * 1024)
}

/// Returns how many bytes of a process's current memory belong to no file, such as the bytes of its heap.
pub fn anonymous_bytes(whose: MeasuredProcess) -> Option<u64> {
    field(&format!("{}/status", whose.dir()), "RssAnon:").map(|kib| kib * 1024)
}

/// Returns the CPU time that this process has used since its start, in user and system mode.
pub fn process_cpu() -> Duration {
    from_timespec(clock_gettime(ClockId::ProcessCPUTime))
}

/// Returns the CPU time that the calling thread has used since it began.
pub fn thread_cpu() -> Duration {
    from_timespec(clock_gettime(ClockId::ThreadCPUTime))
}

/// Returns the CPU time of the thread of this process with the kernel's thread id `id`, in steps of 10 ms; `None` after
/// the thread's end.
pub fn cpu_of_thread(id: u32) -> Option<Duration> {
    cpu_of_stat(&format!("/proc/self/task/{id}"))
}

/// Measures the CPU time of the calling thread over a span of time.
#[derive(Clone, Copy, Debug)]
pub struct ThreadCpuMeter {
    cpu: Duration,
    began: Instant,
}

impl ThreadCpuMeter {
    /// Begins measuring the calling thread now.
    pub fn begin() -> Self {
        Self { cpu: thread_cpu(), began: Instant::now() }
    }

    /// Returns the CPU time that the thread used since [`begin`](Self::begin), and the share of the passed time, from 0
    /// to 1, that it was running.
    pub fn end(&self) -> (Duration, f64) {
        let spent = thread_cpu().saturating_sub(self.cpu);
        (spent, spent.as_secs_f64() / self.began.elapsed().as_secs_f64().max(1e-9))
    }
}

/// Measures the resources of a server process and of the calling thread over a span of time.
#[derive(Debug)]
pub struct Meter {
    server: Option<(u32, Usage)>,
    threads: BTreeMap<u32, Duration>,
    effort: ThreadCpuMeter,
    clocks: ClockReading,
}

impl Meter {
    /// Begins measuring now. `server` is the id of the server's process, if it is known. Resets the peak of the
    /// server's memory, so that the peak does not include earlier measurements and their setup.
    pub fn begin(server: Option<u32>) -> Self {
        server.map(MeasuredProcess::Process).into_iter().for_each(reset_peak);
        let server = server.map(|id| (id, Usage::read(MeasuredProcess::Process(id))));
        let threads = server.map_or_else(BTreeMap::new, |(id, _)| thread_times(id));
        Self { server, threads, effort: ThreadCpuMeter::begin(), clocks: ClockReading::now() }
    }

    /// Returns the resources that the server used since the start of the measurement; `None` if its process is not
    /// known.
    pub fn server(&self) -> Option<Cost> {
        self.server.map(|(id, before)| Usage::read(MeasuredProcess::Process(id)).since(&before))
    }

    /// Returns the thread of the server that ran for the largest share of the time since the start of the measurement.
    pub fn server_thread(&self) -> Option<BusyThread> {
        let (process, _) = self.server?;
        let since =
            |(id, now): (u32, Duration)| (id, now.saturating_sub(self.threads.get(&id).copied().unwrap_or_default()));
        let (id, ran) = thread_times(process).into_iter().map(since).max_by_key(|(_, ran)| *ran)?;
        let mut name = [0; 16];
        let text = std::fs::read(format!("/proc/{process}/task/{id}/comm")).unwrap_or_default();
        let text = text.trim_ascii_end();
        name.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
        Some(BusyThread { name, share: ran.as_secs_f64() / self.clocks().seconds.max(1e-9) })
    }

    /// Returns the resources that were used since the start of the measurement. The load generator's are those of the
    /// calling thread.
    pub fn spent(&self) -> RunResources {
        let (cpu, busiest) = self.effort.end();
        let (server, server_thread, clocks) = (self.server(), self.server_thread(), self.clocks());
        RunResources { generator_cpu: cpu.as_secs_f64(), busiest, server, server_thread, clocks }
    }

    /// Returns how the machine's clocks and processors behaved since the start of the measurement: the drift of the
    /// wall clock, and the steal time.
    pub fn clocks(&self) -> Clocks {
        ClockReading::now().since(&self.clocks)
    }
}

/// Resources that a run used, in the load generator and in the server.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunResources {
    /// CPU time of all load-generator threads, in seconds.
    pub generator_cpu: f64,
    /// Share of the benchmark run, from 0 to 1, during which the busiest load-generator thread was running.
    pub busiest: f64,
    /// Resources that the server used; `None` if its process is not known.
    pub server: Option<Cost>,
    /// Thread of the server that ran for the largest share of the time; `None` if the server's process is not known.
    pub server_thread: Option<BusyThread>,
    /// Drift of the machine's wall clock and steal time of its processors during the benchmark run.
    pub clocks: Clocks,
}

/// Thread of a process, and the share of a measured span of time during which the thread ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BusyThread {
    /// Name of the thread as the kernel stores it, padded with zero bytes.
    name: [u8; 16],
    /// Share of the measured time, from 0 to 1, during which the thread ran.
    pub share: f64,
}

impl BusyThread {
    /// Returns the name of the thread.
    pub fn name(&self) -> &str {
        let len = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        std::str::from_utf8(&self.name[..len]).unwrap_or("?")
    }
}

/// CPU times of the threads of a process, by the ids of the threads.
fn thread_times(process: u32) -> BTreeMap<u32, Duration> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    let time = |task: std::fs::DirEntry| {
        let id = task.file_name().to_str()?.parse().ok()?;
        Some((id, cpu_of_stat(task.path().to_str()?)?))
    };
    tasks.into_iter().flatten().flatten().filter_map(time).collect()
}

/// Drift of the machine's wall clock and steal time of its processors over a measured span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clocks {
    /// Length of the measured span of time by the monotonic clock, in seconds.
    pub seconds: f64,
    /// Time by which the wall clock advanced more than the monotonic clock, in seconds. It is negative if the wall
    /// clock advanced less.
    pub drift_seconds: f64,
    /// Share of the time of all processors, from 0 to 1, that the host of a virtual machine took (steal time); `None`
    /// if the kernel does not count it.
    pub stolen: Option<f64>,
}

impl Clocks {
    /// Combines the values of two measured spans of time. The spans need not be adjacent.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let seconds = self.seconds + other.seconds;
        let stolen = self.stolen.zip(other.stolen).filter(|_| seconds > 0.0);
        let stolen = stolen.map(|(one, more)| (one * self.seconds + more * other.seconds) / seconds);
        Self { seconds, drift_seconds: self.drift_seconds + other.drift_seconds, stolen }
    }
}

/// Times of the machine's monotonic and wall clock at one moment, and the steal time up to this moment.
#[derive(Clone, Copy, Debug)]
struct ClockReading {
    monotonic: Instant,
    wall: SystemTime,
    /// Steal time of all processors together since the machine started, and the number of processors.
    stolen: Option<(Duration, u32)>,
}

impl ClockReading {
    /// Maximum number of attempts to read the machine's monotonic and wall clock at the same moment.
    const ATTEMPTS: u32 = 20;
    /// Largest time between readings of the two clocks that count as simultaneous.
    const SIMULTANEOUS: Duration = Duration::from_micros(20);

    /// Reads the machine's monotonic and wall clock. If the system pauses the thread between the two readings, they
    /// show a difference that does not exist. Therefore several pairs are read, and the closest pair is used.
    fn now() -> Self {
        let read = || {
            let (monotonic, wall) = (Instant::now(), SystemTime::now());
            (monotonic.elapsed(), monotonic, wall)
        };
        let mut best = read();
        for _ in 1..Self::ATTEMPTS {
            if best.0 <= Self::SIMULTANEOUS {
                break;
            }
            let next = read();
            if next.0 < best.0 {
                best = next;
            }
        }
        let stolen = std::fs::read_to_string("/proc/stat").ok();
        let stolen = stolen.and_then(|text| Some((stolen_of(&text)?, processors_of(&text))));
        Self { monotonic: best.1, wall: best.2, stolen }
    }

    fn since(&self, before: &Self) -> Clocks {
        let seconds = self.monotonic.saturating_duration_since(before.monotonic).as_secs_f64();
        let wall = match self.wall.duration_since(before.wall) {
            Ok(forwards) => forwards.as_secs_f64(),
            Err(backwards) => -backwards.duration().as_secs_f64(),
        };
        let stolen = self.stolen.zip(before.stolen).filter(|_| seconds > 0.0);
        let stolen = stolen.map(|((now, processors), (then, _))| {
            now.saturating_sub(then).as_secs_f64() / (seconds * f64::from(processors.max(1)))
        });
        Clocks { seconds, drift_seconds: wall - seconds, stolen }
    }
}

/// Counts the processors in the text of `/proc/stat`, which has a line for each.
fn processors_of(text: &str) -> u32 {
    let is_processor =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    u32::try_from(text.lines().filter(is_processor).count()).unwrap_or(u32::MAX)
}

/// Returns the time that the host of a virtual machine has taken from all its processors together since the machine
/// started (steal time).
pub fn stolen_from_processors() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    stolen_of(&text)
}

/// Parses the steal time, the eighth number of the first line of `/proc/stat`, in ticks of 10 ms.
fn stolen_of(text: &str) -> Option<Duration> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    Some(Duration::from_millis(line.split_whitespace().nth(7)?.parse::<u64>().ok()? * 10))
}

fn from_timespec(time: rustix::time::Timespec) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the number after a label in a kernel file with lines of the form `label: number`.
fn field(path: &str, label: &str) -> Option<u64> {
    number_after(&std::fs::read_to_string(path).ok()?, label)
}

/// Returns the number after a label at the start of a line; `None` if there is no such line.
fn number_after(text: &str, label: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the CPU time of a process or thread: `utime` plus `stime` in the file `stat` of its directory below `/proc`,
/// in ticks of 10 ms.
fn cpu_of_stat(dir: &str) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("{dir}/stat")).ok()?;
    // The name in parentheses may contain blanks, so the fields begin after the last parenthesis.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

/// Touches `bytes` bytes of fresh memory and frees them, so that later allocations are fast. On a virtual machine the
/// first touch of a page is slow, up to 4 s for a GiB. Half of the bytes are huge pages, if the kernel has them:
/// memtables use huge pages, which come from other free memory than small pages. Returns the number of bytes touched,
/// at most half of the available memory.
pub fn warm_memory(bytes: u64) -> u64 {
    let available = field("/proc/meminfo", "MemAvailable:").map_or(bytes, |kib| kib * 512);
    let bytes = bytes.min(available);
    let len = usize::try_from(bytes).unwrap_or(0);
    let touch = |block: &mut [u8]| {
        block.chunks_mut(4096).for_each(|page| page[0] = 1);
        std::hint::black_box(block);
    };
    // A map must not be empty. This map is kept until the end, so that the small pages come from other memory.
    let mut huge = memmap2::MmapMut::map_anon((len / 2).max(1));
    if let Ok(huge) = &mut huge {
        // A kernel without huge pages refuses this advice.
        let _ = huge.advise(memmap2::Advice::HugePage);
        touch(huge);
    }
    touch(&mut vec![0_u8; len - len / 2]);
    drop(huge);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lock for tests that begin a meter of their own process, because beginning a meter resets the peak of the
    /// process.
    static PEAK: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn own_usage_rises_with_work() {
        let before = Usage::read(MeasuredProcess::Own);
        let mut sum = 0_u64;
        while process_cpu().saturating_sub(before.cpu) < Duration::from_millis(20) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let cost = Usage::read(MeasuredProcess::Own).since(&before);
        assert!(cost.cpu_seconds >= 0.02);
        assert!(cost.peak_rss_bytes.unwrap() > 1 << 20);
        assert!(thread_cpu() > Duration::ZERO);
    }

    #[test]
    fn the_busiest_thread_is_named() {
        let _peak = PEAK.lock().unwrap();
        let meter = Meter::begin(Some(std::process::id()));
        let work = || {
            while thread_cpu() < Duration::from_millis(1500) {
                std::hint::black_box(0);
            }
            // The kernel lists a thread only until the thread has ended.
            meter.server_thread().unwrap()
        };
        let builder = std::thread::Builder::new().name("busy-one".to_owned());
        let thread = std::thread::scope(|scope| builder.spawn_scoped(scope, work).unwrap().join().unwrap());
        assert!(thread.share > 0.0, "{thread:?}");
        // Other tests of this process run at the same time, but none of their threads runs for as long.
        assert_eq!(thread.name(), "busy-one");
        assert_eq!(Meter::begin(Some(u32::MAX)).server_thread(), None);
    }

    #[test]
    fn switches_of_all_threads_are_counted() {
        // If a thread of another test ends between the readings, its switches are missing. Therefore the test makes
        // several attempts.
        let attempt = || {
            let before = Usage::read(MeasuredProcess::Own);
            (0..20).for_each(|_| std::thread::sleep(Duration::from_micros(100)));
            Usage::read(MeasuredProcess::Own).since(&before).switches.unwrap()
        };
        let counted = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| (0..100).any(|_| attempt().voluntary >= 20));
            sleeper.join().unwrap()
        });
        assert!(counted, "the switches of a thread other than the main one are missing");
        let text = "nonvoluntary_ctxt_switches:\t7\nvoluntary_ctxt_switches:\t5\n";
        assert_eq!(number_after(text, "voluntary_ctxt_switches:"), Some(5));
        assert_eq!(number_after(text, "nonvoluntary_ctxt_switches:"), Some(7));
    }

    #[test]
    fn another_process_is_read_through_proc() {
        let usage = Usage::read(MeasuredProcess::Process(std::process::id()));
        assert!(usage.peak_rss_bytes.unwrap() > 0);
        assert_eq!(Usage::read(MeasuredProcess::Process(u32::MAX)), Usage::default());
    }

    #[test]
    fn a_peak_is_that_since_its_reset() {
        const MIB: u64 = 1 << 20;
        let _peak = PEAK.lock().unwrap();
        let own = MeasuredProcess::Process(std::process::id());
        let peak = || Usage::read(own).peak_rss_bytes.unwrap();
        let before = resident_bytes(own).unwrap();
        let touched = warm_memory(256 * MIB);
        assert!(peak() >= before.max(touched), "{} of {touched}", peak());
        reset_peak(own);
        // Other tests of this process take less memory.
        assert!(peak() < before + touched / 2, "{} after {before}", peak());
        assert_eq!(resident_bytes(MeasuredProcess::Process(u32::MAX)), None);
        // The peak of a new measurement does not include earlier memory.
        let touched = warm_memory(256 * MIB);
        let meter = Meter::begin(Some(std::process::id()));
        let measured = meter.server().unwrap().peak_rss_bytes.unwrap();
        assert!(measured < before + touched / 2, "{measured} after {before}");
    }

    #[test]
    fn stolen_time_is_that_of_all_processors() {
        let text = "cpu  6806483 489880 1190873 2602281 170952 0 55874 16436 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n";
        assert_eq!(stolen_of(text), Some(Duration::from_millis(164_360)));
        assert_eq!(stolen_of("cpu  1 2 3 4\n"), None, "kernels that do not say");
        assert_eq!(stolen_of(""), None);
        assert!(stolen_from_processors() <= stolen_from_processors());
    }

    #[test]
    fn the_share_of_stolen_time_over_two_spans_counts_each_by_its_length() {
        let of = |seconds, stolen| Clocks { seconds, drift_seconds: 0.001, stolen };
        let both = of(1.0, Some(0.5)).and(&of(4.0, Some(0.25)));
        assert_eq!((both.seconds, both.stolen), (5.0, Some(0.3)));
        assert!((both.drift_seconds - 0.002).abs() < 1e-9, "{both:?}");
        assert_eq!(of(1.0, Some(0.5)).and(&of(4.0, None)).stolen, None, "kernels that do not say");
    }

    #[test]
    fn a_step_of_the_wall_clock_and_stolen_time_are_seen() {
        let text = "cpu  1 2 3 4 5 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 2 3 4 5 6 7 8 0 0\nctxt 5\n";
        assert_eq!(processors_of(text), 2);
        let before = ClockReading { stolen: Some((Duration::from_secs(7), 2)), ..ClockReading::now() };
        let after = |wall: i64, stolen| ClockReading {
            monotonic: before.monotonic + Duration::from_secs(10),
            wall: match u64::try_from(wall) {
                Ok(forwards) => before.wall + Duration::from_millis(forwards),
                Err(_) => before.wall - Duration::from_millis(wall.unsigned_abs()),
            },
            stolen,
        };
        let clocks = after(10_000, Some((Duration::from_secs(12), 2))).since(&before);
        assert!(clocks.drift_seconds.abs() < 1e-9 && (clocks.seconds - 10.0).abs() < 1e-9, "{clocks:?}");
        assert_eq!(clocks.stolen, Some(0.25), "5 s of 2 processors in 10 s");
        let stepped = after(-3000, None).since(&before);
        assert!((stepped.drift_seconds + 13.0).abs() < 1e-9 && stepped.stolen.is_none(), "{stepped:?}");
    }

    #[test]
    fn warming_is_bounded_by_what_there_is() {
        assert_eq!(warm_memory(1 << 20), 1 << 20);
        assert!(warm_memory(0) == 0);
    }
}
