//! Progress lines of a benchmark suite. They never go to standard output, which is for reports.

/// Receives the progress of a benchmark suite, one short line at a time.
pub trait Progress {
    /// Reports that one step of the running benchmark suite begins or has ended.
    fn step(&mut self, line: &str);
}

/// A progress receiver that drops all lines, for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn step(&mut self, _line: &str) {}
}

/// A progress receiver that prints each line to standard error, with the seconds since the start.
#[derive(Debug)]
pub struct Stderr {
    start: std::time::Instant,
}

impl Default for Stderr {
    fn default() -> Self {
        Self { start: std::time::Instant::now() }
    }
}

impl Progress for Stderr {
    fn step(&mut self, line: &str) {
        eprintln!("[{:7.1}s] {line}", self.start.elapsed().as_secs_f64());
    }
}
