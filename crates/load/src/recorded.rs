//! Recorded arrivals: the times at which requests once arrived. A schedule repeats them.

use std::path::Path;

/// Maximum number of arrivals in a file.
const MAX_ARRIVALS: usize = 10_000_000;

/// Recorded arrivals, in order of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Name of the file with the arrivals, as the user typed it.
    file: String,
    /// Time of each arrival since the first one, in seconds. The last time is above 0.
    times: Vec<f64>,
}

impl Recorded {
    /// Reads a file with one arrival time in seconds on each line. The times may count from any start and be in any
    /// order. Empty lines and lines that begin with `#` are skipped.
    pub(crate) fn read(file: &str) -> Result<Self, String> {
        let text = std::fs::read_to_string(Path::new(file)).map_err(|error| format!("{file}: {error}"))?;
        Self::parse(file, &text)
    }

    fn parse(file: &str, text: &str) -> Result<Self, String> {
        let mut times = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let time = line.parse::<f64>().ok().filter(|time| time.is_finite());
            times.push(time.ok_or_else(|| format!("{file}, line {}: {line:?} is no time in seconds", number + 1))?);
        }
        if times.len() > MAX_ARRIVALS {
            return Err(format!("{file}: {} arrivals, and at most {MAX_ARRIVALS} are allowed", times.len()));
        }
        times.sort_unstable_by(f64::total_cmp);
        let first = times.first().copied().unwrap_or(0.0);
        times.iter_mut().for_each(|time| *time -= first);
        if times.last().is_none_or(|last| *last <= 0.0) {
            return Err(format!("{file}: at least two arrivals at different times are needed"));
        }
        Ok(Self { file: file.to_owned(), times })
    }

    /// Returns the name of the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the average rate of the recording, in arrivals per second.
    pub fn rate(&self) -> f64 {
        self.times.len() as f64 / self.period()
    }

    /// Returns the time in seconds after which the recording is repeated. It is one average gap longer than the time of
    /// the last arrival.
    fn period(&self) -> f64 {
        let count = self.times.len() as f64;
        self.times.last().copied().unwrap_or(0.0) * count / (count - 1.0)
    }

    /// Returns the time of arrival number `number` in nanoseconds since the start. The arrivals are repeated endlessly,
    /// and stretched or compressed to `rate` arrivals per second on average.
    pub(crate) fn due(&self, number: u64, rate: f64) -> f64 {
        let count = self.times.len() as u64;
        let seconds = (number / count) as f64 * self.period() + self.times[(number % count) as usize];
        seconds * self.rate() / rate * 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_repeated_at_the_rate_that_is_asked_for() {
        let recorded = Recorded::parse("log", "# a comment\n1700000000.0\n1700000003\n\n1700000000.5\n").unwrap();
        assert_eq!((recorded.rate(), recorded.file()), (3.0 / 4.5, "log"));
        let due: Vec<f64> = (0..5).map(|number| recorded.due(number, recorded.rate()) / 1e9).collect();
        assert_eq!(due, [0.0, 0.5, 3.0, 4.5, 5.0]);
        let twice = recorded.due(4, 2.0 * recorded.rate()) / 1e9;
        assert!((twice - 2.5).abs() < 1e-9, "{twice}");
    }

    #[test]
    fn a_file_without_arrivals_is_refused_with_its_line() {
        for (text, part) in
            [("", "at least two"), ("1\n1\n", "at least two"), ("1\nnow\n", "line 2"), ("1\n2\nNaN\n", "line 3")]
        {
            let error = Recorded::parse("file", text).unwrap_err();
            assert!(error.contains(part) && error.starts_with("file"), "{error}");
        }
        assert!(Recorded::read("/does/not/exist").unwrap_err().contains("/does/not/exist"));
    }
}
