//! Profile of memory allocations. While a client on this machine records, the process samples the call stacks that
//! allocate memory.
//!
//! Owns: the allocator that takes samples, and the socket over which `thalweg bench --profile alloc` records. Exists
//! only in builds with the feature `alloc-profile`. Cost: one comparison for each allocation, and a few microseconds
//! for each sample.
//!
//! A thread takes a sample each time that it has allocated another [`SAMPLE_BYTES`]. The sample counts for all bytes
//! since the previous sample. So the samples of a thread add up to its allocated bytes, except for those after its last
//! sample. Large allocations are never missed, and small ones are found in proportion to their bytes.
//!
//! ```text
//! client                    server
//! connects                  begins to sample, and sends "begun\n"
//! "end\n"                   stops, and sends a line for each stack, the outermost call first:
//!                           bytes TAB samples TAB thread TAB function TAB function ...
//! ```
//! A client that disconnects ends its recording. One client records at a time, and the next one waits. The name of the
//! socket is abstract and so has no permissions: the process answers only clients of its own user and of root.
//!
//! Bound: [`MAX_SAMPLES`] samples. Further samples are only counted, as one stack without functions.
//!
//! Such a build is not for production. A thread can hang if it prints its own stack, as after a panic, while a client
//! records.

use std::{
    alloc::{GlobalAlloc, Layout},
    backtrace::Backtrace,
    cell::Cell,
    collections::BTreeMap,
    fs,
    io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write as _},
    mem,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    process,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use mimalloc::MiMalloc;

/// Number of bytes that a thread allocates between two samples. At 1 GB/s this makes 2,000 samples a second.
const SAMPLE_BYTES: u64 = 512 * 1024;
/// Maximum number of samples of a recording. Each sample takes about 4 KB of memory.
const MAX_SAMPLES: usize = 20_000;
/// Line with which a client ends its recording. The server reads at most `MAX_WORD_BYTES` bytes of a line from a
/// client.
const END: &str = "end\n";
const MAX_WORD_BYTES: u64 = 16;
/// Names of functions on the stack between the code that allocates and the allocator. The profile leaves them out.
const OF_ALLOCATOR: [&str; 5] = ["__rust_alloc", "__rust_realloc", "__rustc", "alloc::alloc::", "core::alloc::"];

static IS_RECORDING: AtomicBool = AtomicBool::new(false);
static SAMPLES: Mutex<Samples> = Mutex::new(Samples { taken: Vec::new(), further: 0, further_bytes: 0 });

thread_local! {
    /// Number of bytes that this thread has allocated since its last sample.
    static SINCE: Cell<u64> = const { Cell::new(0) };
    /// True while this thread takes a sample. Allocations made by the sampling itself do not count.
    static IS_SAMPLING: Cell<bool> = const { Cell::new(false) };
}

/// A sample: the call stack of an allocation, and the number of allocated bytes for which the sample counts.
struct Sample {
    bytes: u64,
    thread: String,
    stack: Backtrace,
}

#[derive(Default)]
struct Samples {
    taken: Vec<Sample>,
    /// Number of samples beyond [`MAX_SAMPLES`]. `further_bytes` is the number of bytes for which they count.
    further: u64,
    further_bytes: u64,
}

/// The allocator mimalloc, extended by a profiler: it takes samples of the allocations while a client records.
pub(crate) struct SamplingAllocator;

// SAFETY: every call goes unchanged to mimalloc. Sampling touches no memory of the allocation, and does not unwind.
unsafe impl GlobalAlloc for SamplingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's guarantees are passed on.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's guarantees are passed on.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { MiMalloc.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.saturating_sub(layout.size()));
        // SAFETY: the caller's guarantees are passed on.
        unsafe { MiMalloc.realloc(at, layout, size) }
    }
}

#[inline]
fn count(bytes: usize) {
    if IS_RECORDING.load(Relaxed) {
        count_recorded(bytes as u64);
    }
}

#[cold]
fn count_recorded(bytes: u64) {
    if IS_SAMPLING.get() {
        return;
    }
    let since = SINCE.get() + bytes;
    if since < SAMPLE_BYTES {
        return SINCE.set(since);
    }
    SINCE.set(0);
    IS_SAMPLING.set(true);
    take(since);
    IS_SAMPLING.set(false);
}

/// Takes a sample that counts for `bytes` bytes.
fn take(bytes: u64) {
    // The thread's name comes from the kernel, because the name in the standard library cannot be read while a thread
    // ends.
    let thread = fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
    let stack = Backtrace::force_capture();
    let mut samples = samples();
    if samples.taken.len() < MAX_SAMPLES {
        samples.taken.push(Sample { bytes, thread: thread.trim().to_owned(), stack });
    } else {
        samples.further += 1;
        samples.further_bytes += bytes;
    }
}

fn samples() -> MutexGuard<'static, Samples> {
    SAMPLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves recording clients on a separate thread. If the socket cannot be created, nothing can be recorded: clients
/// cannot connect, and report this to their user.
pub(crate) fn listen() {
    let name = format!("thalweg-alloc-profile-{}", process::id());
    let Ok(listener) = SocketAddr::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address))
    else {
        return;
    };
    let serve = move || {
        for client in listener.incoming().flatten() {
            // If the client has disconnected, it needs no reply, so an error is ignored.
            let _ = record(&client);
            IS_RECORDING.store(false, Relaxed);
        }
    };
    let _ = thread::Builder::new().name("alloc-profile".to_owned()).spawn(serve);
}

/// Records samples of the process's allocations until the client ends the recording. Then sends the sampled stacks to
/// the client.
fn record(mut client: &UnixStream) -> io::Result<()> {
    let user = rustix::net::sockopt::socket_peercred(client)?.uid;
    if user != rustix::process::getuid() && !user.is_root() {
        return Ok(());
    }
    *samples() = Samples::default();
    IS_RECORDING.store(true, Relaxed);
    client.write_all(b"begun\n")?;
    let mut word = String::new();
    BufReader::new(client.take(MAX_WORD_BYTES)).read_line(&mut word)?;
    IS_RECORDING.store(false, Relaxed);
    let recorded = mem::take(&mut *samples());
    if word != END {
        return Ok(());
    }
    let mut out = BufWriter::new(client);
    for (stack, (bytes, count)) in stacks(&recorded) {
        writeln!(out, "{bytes}\t{count}\t{stack}")?;
    }
    out.flush()
}

/// Returns the call stacks of a recording, each with its bytes and its number of samples. A stack is the thread's name
/// and the names of the functions, separated by tabs.
fn stacks(recorded: &Samples) -> BTreeMap<String, (u64, u64)> {
    let mut stacks = BTreeMap::<String, (u64, u64)>::new();
    let mut add = |stack: String, bytes: u64, count: u64| {
        let sum = stacks.entry(stack).or_default();
        *sum = (sum.0 + bytes, sum.1 + count);
    };
    for Sample { bytes, thread, stack } in &recorded.taken {
        let mut line = thread.replace(['\t', '\n'], " ");
        for function in functions(&stack.to_string()) {
            line = line + "\t" + &function.replace('\t', " ");
        }
        add(line, *bytes, 1);
    }
    if recorded.further > 0 {
        add("further samples".to_owned(), recorded.further_bytes, recorded.further);
    }
    stacks
}

/// Returns the functions of a captured stack, outermost first. Functions of this module and of the allocator are left
/// out.
fn functions(stack: &str) -> Vec<&str> {
    let mut names: Vec<&str> = stack.lines().filter_map(function).collect();
    let own = names.iter().rposition(|name| name.contains("alloc_profile::") && !name.contains("::tests::"));
    let is_allocator = |name: &&str| OF_ALLOCATOR.iter().any(|part| name.contains(part));
    let from = own.map_or(0, |own| own + 1);
    let of_allocator = names[from..].iter().take_while(|name| is_allocator(name)).count();
    names.drain(..from + of_allocator);
    names.reverse();
    names
}

/// Returns the function that a line of a stack's text names; `None` for a line with a position in a source file.
fn function(line: &str) -> Option<&str> {
    let line = line.trim();
    if line.is_empty() || line.starts_with("at ") {
        return None;
    }
    let numbered = line.split_once(": ").filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()));
    Some(numbered.map_or(line, |(_, name)| name.trim()))
}

#[cfg(test)]
mod tests {
    use thalweg_lab::profile::{ProfileKind, Recording};

    use super::*;

    #[inline(never)]
    fn allocate_for_the_profile() {
        for _ in 0..64 {
            std::hint::black_box(vec![1_u8; 1 << 20]);
        }
    }

    #[test]
    fn a_function_that_allocates_is_found_by_its_name() {
        listen();
        let directory = std::path::Path::new(".");
        let record = || Recording::begin(ProfileKind::Alloc, process::id(), directory).unwrap();
        Recording::check(ProfileKind::Alloc, process::id(), directory).unwrap();
        let recording = record();
        allocate_for_the_profile();
        let profile = recording.end().unwrap();
        let functions = profile.stacks.functions(10_000);
        let found = functions.iter().find(|(name, ..)| name.contains("allocate_for_the_profile"));
        let (_, _, mebibytes) = found.unwrap_or_else(|| panic!("{functions:?}"));
        // Each allocation is larger than `SAMPLE_BYTES`, so each is sampled.
        assert!((64.0..65.0).contains(mebibytes), "{functions:?}");
        assert!(profile.samples >= 64 && functions.iter().all(|(name, ..)| !name.contains("count_recorded")));
        let recording = record();
        let nothing = recording.end().unwrap();
        assert!(nothing.stacks.functions(10_000).iter().all(|(name, ..)| !name.contains("allocate_for_the_profile")));
    }

    #[test]
    fn functions_are_those_of_the_code_that_allocates() {
        let text = "   0: std::backtrace::Backtrace::force_capture\n   1: thalweg::alloc_profile::take\n   \
                    at ./src/alloc_profile.rs:1:2\n   2: __rustc::__rust_alloc\n   3: alloc::alloc::alloc\n   \
                    4: alloc::vec::Vec<T>::push\n             at /rustc/vec.rs:5\n      inlined::caller\n   5: main\n";
        assert_eq!(functions(text), ["main", "inlined::caller", "alloc::vec::Vec<T>::push"]);
        assert_eq!(functions("   0: main\n   1: <unknown>\n"), ["<unknown>", "main"]);
        assert!(functions("disabled backtrace").len() == 1 && functions("").is_empty());
    }
}
