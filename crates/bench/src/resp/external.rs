//! Runs redis-benchmark as the load generator. Thalweg's authors did not write it.
//!
//! redis-benchmark sends a given number of requests, and cannot run for a given time. Therefore a short run before each
//! round determines how many requests fill the duration. redis-benchmark compares no values. An error reply ends it,
//! and ends the round.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use super::client::Greeting;
use crate::{BenchError, load::Address};

/// Parameters of a run of redis-benchmark.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Server address, password and database with which each connection begins.
    pub greeting: Greeting,
    /// Number of connections, option `-c` of redis-benchmark.
    pub connections: usize,
    /// Number of requests that each connection pipelines, option `-P` of redis-benchmark.
    pub pipeline: usize,
    /// Bytes of a value, option `-d` of redis-benchmark.
    pub value_bytes: usize,
    /// Number of keys, option `-r` of redis-benchmark.
    pub keys: u64,
    /// The request that redis-benchmark sends repeatedly.
    pub what: BenchmarkRequest,
}

/// Request that redis-benchmark sends.
#[derive(Clone, Debug)]
pub(super) enum BenchmarkRequest {
    /// A built-in test of redis-benchmark, by its name.
    Test(&'static str),
    /// A RESP command with its arguments.
    Command(Vec<String>),
}

/// Figures that redis-benchmark printed. Its response times start at the moment of sending and have a resolution of a
/// microsecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    /// Number of requests per second that redis-benchmark measured.
    pub rate: f64,
    /// Median response time in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the response times in microseconds.
    pub p99_us: f64,
    /// Longest response time in microseconds.
    pub max_us: f64,
}

impl Figures {
    /// Returns a percentile of the response times, in microseconds; NaN if redis-benchmark does not print this
    /// percentile.
    pub(super) fn time_us(&self, percentile: f64) -> f64 {
        let known = [(50.0, self.p50_us), (99.0, self.p99_us), (100.0, self.max_us)];
        known.into_iter().find(|(known, _)| *known == percentile).map_or(f64::NAN, |(_, time)| time)
    }
}

/// Number of requests in the first of two short runs. Its rate determines the number of requests of the second.
const PILOT: u64 = 2000;

impl Request {
    /// Runs redis-benchmark with the number of requests that takes about `time`.
    pub(super) fn run(&self, binary: &Path, time: Duration) -> Result<Figures, BenchError> {
        // The first short run is slow, because everything is cold. The rate comes from the second.
        let pilot = self.count(binary, PILOT)?;
        let pilot = self.count(binary, requests(pilot.rate, time / 10))?;
        self.count(binary, requests(pilot.rate, time))
    }

    /// Runs redis-benchmark with this number of requests.
    pub(super) fn count(&self, binary: &Path, requests: u64) -> Result<Figures, BenchError> {
        let name = binary.display().to_string();
        let fail = |message: String| BenchError::subject(&name, "measuring")(message);
        let output = Command::new(binary)
            .args(self.arguments(requests))
            .stdin(Stdio::null())
            .output()
            .map_err(|error| fail(format!("{error}; install redis-tools, or use --generator own")))?;
        let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            return Err(fail(format!("it ended with {}: {}", output.status, complained.trim())));
        }
        parse(&said).ok_or_else(|| fail(format!("its CSV was not understood: {said:?} {complained:?}")))
    }

    fn arguments(&self, requests: u64) -> Vec<String> {
        let mut arguments: Vec<String> = match &self.greeting.address {
            Address::Tcp(address) => {
                vec!["-h".into(), address.ip().to_string(), "-p".into(), address.port().to_string()]
            }
            Address::Unix(path) => vec!["-s".into(), path.display().to_string()],
        };
        let mut add = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        if let Some(password) = &self.greeting.password {
            add("-a", password.clone());
        }
        if self.greeting.database != 0 {
            add("--dbnum", self.greeting.database.to_string());
        }
        add("-n", requests.to_string());
        add("-c", self.connections.to_string());
        add("-P", self.pipeline.to_string());
        add("-d", self.value_bytes.to_string());
        add("-r", self.keys.to_string());
        if self.greeting.is_resp3 {
            arguments.push("-3".to_owned());
        }
        arguments.push("--csv".to_owned());
        match &self.what {
            BenchmarkRequest::Test(test) => arguments.extend(["-t".to_owned(), (*test).to_owned()]),
            BenchmarkRequest::Command(words) => arguments.extend(words.iter().cloned()),
        }
        arguments
    }
}

fn requests(rate: f64, time: Duration) -> u64 {
    ((rate * time.as_secs_f64()) as u64).max(PILOT)
}

/// Parses the first line with figures in redis-benchmark's CSV output; `None` if there is none.
fn parse(csv: &str) -> Option<Figures> {
    let mut lines = csv.lines().filter(|line| line.starts_with('"'));
    let heads = cells(lines.next()?);
    let row = cells(lines.next()?);
    // The name of a command may contain the separator of the cells, so columns are counted from the end.
    let of = |name: &str| {
        let place = heads.iter().position(|head| *head == name)?;
        row.get(row.len().checked_sub(heads.len() - place)?)?.parse::<f64>().ok()
    };
    Some(Figures {
        rate: of("rps")?,
        p50_us: of("p50_latency_ms")? * 1e3,
        p99_us: of("p99_latency_ms")? * 1e3,
        max_us: of("max_latency_ms")? * 1e3,
    })
}

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('"').split("\",\"").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#""test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms""#;

    #[test]
    fn its_csv_is_understood() {
        let csv =
            format!("{HEAD}\n\"SET\",\"714285.69\",\"0.952\",\"0.192\",\"0.751\",\"2.231\",\"2.711\",\"2.799\"\n");
        let figures = parse(&csv).unwrap();
        assert_eq!(figures.rate, 714_285.69);
        assert!((figures.p50_us - 751.0).abs() < 1e-6 && (figures.p99_us - 2711.0).abs() < 1e-6);
        let odd = format!("{HEAD}\n\"xadd s \",\" f\",\"10.5\",\"1\",\"1\",\"2\",\"3\",\"4\",\"5\"\n");
        assert_eq!(parse(&odd).unwrap().rate, 10.5);
        for wrong in ["", HEAD, &format!("{HEAD}\n\"SET\"\n"), "\"a\"\n\"b\"\n"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn arguments_are_its_own() {
        let greeting =
            Greeting { address: "127.0.0.1:7".parse().unwrap(), password: None, database: 1, is_resp3: true };
        let what = BenchmarkRequest::Command(vec!["XADD".to_owned(), "s".to_owned()]);
        let request = Request { greeting, connections: 50, pipeline: 16, value_bytes: 3, keys: 9, what };
        let wanted = "-h 127.0.0.1 -p 7 --dbnum 1 -n 2000 -c 50 -P 16 -d 3 -r 9 -3 --csv XADD s";
        assert_eq!(request.arguments(2000).join(" "), wanted);
    }
}
