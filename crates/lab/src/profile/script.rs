//! The text that `perf script` prints, read into stacks of calls.
//!
//! Owns: the parsing of samples and switches, and the time for which a thread was stopped. Does not own: running `perf`
//! (`perf`), or the tree of stacks (`stacks`).
//!
//! ```text
//! thread name  1234   400.006834:   5025125 cpu-clock:           a sample with its weight, and frames from the innermost on
//!         ffffffff821f7f58 __schedule ([kernel.kallsyms])
//!                   cf545 clock_nanosleep@GLIBC_2.2.5 (/usr/lib/libc.so.6)
//!
//! thread name  1234   400.007416: PERF_RECORD_SWITCH IN
//! ```

use std::{collections::HashMap, io::BufRead};

use super::{kind::ProfileKind, stacks::Stacks};

/// Maximum number of frames of a stack that are kept, counted from the outermost frame.
const MAX_FRAMES: usize = 256;
/// Name that `perf script` prints for a frame whose function is unknown.
const UNKNOWN: &str = "[unknown]";
/// Parts of the names of functions in which a thread waits for a lock that another thread holds.
const LOCKS: [&str; 6] =
    ["lock_contended", "read_contended", "write_contended", "lock_slow", "lock_shared_slow", "pthread_mutex_lock"];

/// Parsed first line of a sample, or of a switch between threads.
#[derive(Debug, PartialEq)]
struct Head<'a> {
    thread: &'a str,
    id: u32,
    seconds: f64,
    /// Number of events that the sample represents. For the event `cpu-clock` these are nanoseconds of processor time.
    /// 0 for a switch between threads.
    period: u64,
    event: &'a str,
}

/// Stacks that were read from the text of `perf script`, and the numbers of samples.
#[derive(Debug, Default)]
pub(super) struct Script {
    /// Stacks of all threads. The first frame of each stack is the thread's name.
    pub stacks: Stacks,
    /// Number of samples in the text of `perf script`.
    pub samples: u64,
    /// Number of samples in which no function of the measured program has a name, because the program has no symbols.
    pub nameless: u64,
    /// Threads that do not run at present, by their ids, if the moment at which they stopped was sampled. Each has the
    /// frames of its stack, the time of that moment in seconds, and the number of switches that the sample represents.
    stopped: HashMap<u32, (Vec<String>, f64, u64)>,
}

impl Script {
    /// Reads the text that `perf script` prints. In a profile of the kind `cpu`, the weight of a sample is the
    /// processor time that it represents. In other kinds it is the time until the thread continues, times the number of
    /// switches that the sample represents.
    pub(super) fn read(text: impl BufRead, kind: ProfileKind) -> std::io::Result<Self> {
        let mut script = Self::default();
        let (mut sample, mut frames) = (None::<(String, u32, f64, u64)>, Vec::new());
        for line in text.split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            if line.starts_with(['\t', ' ']) && sample.is_some() && head(&line).is_none() {
                frames.extend(frame(&line));
                continue;
            }
            if let Some((thread, id, at, period)) = sample.take() {
                script.sample(kind, (&thread, id, at), std::mem::take(&mut frames), period);
            }
            match head(&line) {
                Some(Head { id, seconds, event: "PERF_RECORD_SWITCH IN", .. }) => {
                    script.continues(kind, id, seconds);
                }
                Some(Head { event, .. }) if event.starts_with("PERF_RECORD_") => {}
                Some(Head { thread, id, seconds, period, .. }) => {
                    sample = Some((thread.to_owned(), id, seconds, period));
                }
                None => {}
            }
        }
        if let Some((thread, id, at, period)) = sample.take() {
            script.sample(kind, (&thread, id, at), frames, period);
        }
        Ok(script)
    }

    /// Adds a sample of a thread. `frames` begin with the innermost frame.
    fn sample(&mut self, kind: ProfileKind, (thread, id, at): (&str, u32, f64), mut frames: Vec<String>, period: u64) {
        self.samples += 1;
        // The outermost frames are kept, so that deep stacks have the same root as other stacks.
        frames.drain(..frames.len().saturating_sub(MAX_FRAMES));
        let is_named = |frame: &String| frame.contains("::") && !frame.starts_with(UNKNOWN);
        self.nameless += u64::from(!frames.iter().any(is_named));
        frames.push(thread.to_owned());
        frames.reverse();
        if kind != ProfileKind::Cpu {
            end_at_system_call(&mut frames);
        }
        if kind == ProfileKind::Cpu {
            self.stacks.add(frames.iter().map(|frame| &**frame), period as f64 / 1e9);
        } else {
            self.stopped.insert(id, (frames, at, period));
        }
    }

    /// Ends the wait of the thread `id`, which continues at the time `now` in seconds. Adds the stack with which the
    /// thread had stopped, if that moment was sampled.
    fn continues(&mut self, kind: ProfileKind, id: u32, now: f64) {
        let Some((frames, at, period)) = self.stopped.remove(&id) else { return };
        let is_lock = || frames.iter().any(|frame| LOCKS.iter().any(|lock| frame.contains(lock)));
        if kind != ProfileKind::Lock || is_lock() {
            self.stacks.add(frames.iter().map(|frame| &**frame), (now - at).max(0.0) * period as f64);
        }
    }
}

/// Removes the kernel functions inside a system call from the frames of a waiting thread. The frames begin with the
/// outermost one. All waits end in the kernel's scheduler, so only the system call shows the purpose of the wait.
fn end_at_system_call(frames: &mut Vec<String>) {
    let is_call = |frame: &String| frame.contains("_sys_") && frame.ends_with("_[k]");
    if let Some(at) = frames.iter().position(is_call) {
        frames.truncate(at + 1);
    }
}

/// Parses the first line of a sample or of a switch. A thread's name may contain blanks and colons.
fn head(line: &str) -> Option<Head<'_>> {
    line.match_indices(": ").find_map(|(at, _)| head_at(&line[..at], &line[at + 2..]))
}

/// Parses the first line of a sample or of a switch. The caller has cut it between its time (`before`) and its event.
fn head_at<'a>(before: &'a str, event: &'a str) -> Option<Head<'a>> {
    let (before, seconds) = before.trim_end().rsplit_once(' ')?;
    let (thread, id) = before.trim_end().rsplit_once(' ')?;
    let event = event.trim();
    let (period, event) = match event.split_once(' ') {
        Some((period, event)) if !event.starts_with("PERF_RECORD_") && period.parse::<u64>().is_ok() => {
            (period.parse().ok()?, event)
        }
        _ => (0, event),
    };
    Some(Head { thread: thread.trim(), id: id.parse().ok()?, seconds: seconds.parse().ok()?, period, event })
}

/// Parses a frame: an address, the function, and its file in parentheses. Names of kernel functions get the suffix
/// `_[k]`, as in other flame graphs.
fn frame(line: &str) -> Option<String> {
    let (_, rest) = line.trim().split_once(' ')?;
    let (function, file) = rest.rsplit_once(" (").unwrap_or((rest, ""));
    let file = file.trim_end_matches(')');
    let function = function.trim();
    if function == UNKNOWN {
        let file = file.rsplit('/').next().filter(|file| !file.is_empty() && !file.starts_with('['));
        return Some(file.map_or(UNKNOWN.to_owned(), |file| format!("{UNKNOWN} in {file}")));
    }
    let function = without_hash(function);
    Some(if file.starts_with("[kernel") || file.ends_with(".ko") {
        format!("{function}_[k]")
    } else {
        function.to_owned()
    })
}

/// Returns the name of a Rust function without the hash that the compiler adds.
fn without_hash(function: &str) -> &str {
    let is_hash = |hash: &str| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    function.rsplit_once("::h").filter(|(_, hash)| is_hash(hash)).map_or(function, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "http worker 1   12   10.000000: 5000000 cpu-clock:ppp: \n\
        \tffffffff81 do_syscall_64 ([kernel.kallsyms])\n\
        \t      cf545 thalweg_log::commit::lead::h0123456789abcdef (/bin/thalweg)\n\
        \t      cf545 [unknown] (/bin/thalweg)\n\n\
        \n\
        a:: b: c  11   10.100000: 5000000 cpu-clock:ppp: \n\
        \t      99 [unknown] ([unknown])\n\n";

    const SWITCHES: &str = "main  11   10.000000: PERF_RECORD_SWITCH IN         \n\
        main  11   10.250000:          4 sched:sched_switch: \n\
        \tffffffff81 schedule ([kernel.kallsyms])\n\
        \t       5 std::sys::sync::mutex::futex::Mutex::lock_contended (/bin/thalweg)\n\n\
        main  11   10.250001: PERF_RECORD_SWITCH OUT         \n\
        main  11   10.750000: PERF_RECORD_SWITCH IN         \n\
        main  11   11.000000: PERF_RECORD_SWITCH OUT preempt        \n\
        main  11   12.000000: PERF_RECORD_SWITCH IN         \n\
        main  11   12.500000:          2 sched:sched_switch: \n\
        \tffffffff81 do_epoll_wait ([kernel.kallsyms])\n\
        \tffffffff82 __x64_sys_epoll_wait ([kernel.kallsyms])\n\n\
        main  11   13.000000: PERF_RECORD_SWITCH IN         \n\
        main  11   13.500000:          2 sched:sched_switch: \n\
        \tffffffff81 never_continues ([kernel.kallsyms])\n";

    fn paths(stacks: &Stacks) -> Vec<(String, f64)> {
        fn walk(path: &str, call: &super::super::stacks::Call, out: &mut Vec<(String, f64)>) {
            if call.own_weight > 0.0 {
                out.push((path.to_owned(), call.own_weight));
            }
            call.callees.iter().for_each(|(name, call)| walk(&format!("{path};{name}"), call, out));
        }
        let mut out = Vec::new();
        walk("", stacks.root(), &mut out);
        out
    }

    #[test]
    fn samples_become_stacks_from_the_thread_inwards() {
        let script = Script::read(TEXT.as_bytes(), ProfileKind::Cpu).unwrap();
        assert_eq!((script.samples, script.nameless), (2, 1));
        let first = ";http worker 1;[unknown] in thalweg;thalweg_log::commit::lead;do_syscall_64_[k]".to_owned();
        assert_eq!(paths(&script.stacks), [(";a:: b: c;[unknown]".to_owned(), 0.005), (first, 0.005)]);
    }

    #[test]
    fn waiting_time_is_that_between_the_sampled_stop_and_the_next_start() {
        let script = Script::read(SWITCHES.as_bytes(), ProfileKind::Offcpu).unwrap();
        let lock = ";main;std::sys::sync::mutex::futex::Mutex::lock_contended;schedule_[k]".to_owned();
        assert_eq!(paths(&script.stacks), [(";main;__x64_sys_epoll_wait_[k]".to_owned(), 1.0), (lock.clone(), 2.0)]);
        let script = Script::read(SWITCHES.as_bytes(), ProfileKind::Lock).unwrap();
        assert_eq!(paths(&script.stacks), [(lock, 2.0)]);
    }

    #[test]
    fn a_deep_stack_keeps_its_outermost_frames() {
        let frames: String = (0..MAX_FRAMES + 10).map(|at| format!("\t  99 f{at} (/bin/thalweg)\n")).collect();
        let text = format!("main  11   10.000000: 5000000 cpu-clock:ppp: \n{frames}\n");
        let script = Script::read(text.as_bytes(), ProfileKind::Cpu).unwrap();
        let functions = script.stacks.functions(MAX_FRAMES + 10);
        let has = |name: String| functions.iter().any(|(function, ..)| *function == name);
        assert!(has(format!("f{}", MAX_FRAMES + 9)) && has("f10".to_owned()) && !has("f9".to_owned()));
    }

    #[test]
    fn other_text_is_no_sample() {
        for text in ["", "\n\n\t", "no samples found\n\tabc def\n", "a: b: c\n", "\u{fffd}\t x (\n"] {
            assert_eq!(Script::read(text.as_bytes(), ProfileKind::Cpu).unwrap().samples, 0, "{text:?}");
        }
        assert_eq!(without_hash("a::hello"), "a::hello");
    }
}
