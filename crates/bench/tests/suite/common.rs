//! Helpers of the tests of the suites: options as they are typed, scenario files, servers that answer as a test says,
//! and the figures of a report.
//!
//! Does not own: a server of Thalweg, which is in `node.rs`.

use std::{
    io::{BufRead, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use clap::Parser as _;
use serde_json::Value;
use thalweg_bench::{
    BenchError, Quiet, Report,
    report::{Check, Verdict},
    scenario::{self, ScenarioOptions},
};

#[derive(clap::Parser)]
struct Cli<O: clap::Args> {
    #[command(flatten)]
    options: O,
}

/// Parses the words of a command line as the options of a suite.
pub fn parse<O: clap::Args>(words: &str) -> Result<O, clap::Error> {
    Cli::<O>::try_parse_from(["bench"].into_iter().chain(words.split_whitespace())).map(|cli| cli.options)
}

/// Returns the options of a suite that these words give.
pub fn options<O: clap::Args>(words: &str) -> O {
    parse(words).unwrap_or_else(|error| panic!("{words}: {error}"))
}

/// Writes a scenario file, and runs it with these words after its name.
pub fn run_scenario(text: &str, words: &str) -> Result<Report, BenchError> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("feeds.toml");
    std::fs::write(&file, text).unwrap();
    scenario::run(&options::<ScenarioOptions>(&format!("{} {words}", file.display())), &mut Quiet)
}

/// Asserts that everything sent came, rightly: the checks of rates mean nothing here.
pub fn assert_right(report: &Report) {
    let bad = |check: &&Check| check.required.starts_with("all ") && check.verdict != Verdict::Met;
    let bad: Vec<_> = report.checks.iter().filter(bad).collect();
    assert!(bad.is_empty() && !report.checks.is_empty(), "{bad:?}\n{}", report.to_text());
}

/// Returns the rows of the first table whose title begins with `title`.
pub fn rows(report: &Report, title: &str) -> Vec<Value> {
    let json: Value = serde_json::from_str(&report.to_json()).unwrap();
    let tables = json["tables"].as_array().unwrap();
    let found = tables.iter().find(|table| table["title"].as_str().unwrap().starts_with(title));
    found.unwrap_or_else(|| panic!("no {title:?} in {json}"))["rows"].as_array().unwrap().clone()
}

/// Returns the figures of an operation in the table of records and messages.
pub fn feed_row(report: &Report, operation: &str) -> Value {
    let rows = rows(report, "records and messages");
    rows.into_iter().find(|row| row["operation"] == operation).unwrap()
}

/// Asserts that a row has numbers above 0 in these columns.
pub fn assert_positive(row: &Value, columns: &[&str]) {
    for column in columns {
        assert!(row[column].as_f64().is_some_and(|value| value > 0.0), "{column}: {row}");
    }
}

/// Starts a server that hands each connection to `serve` on a thread of its own. The threads end with the process.
pub fn listen(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, serve) = (listener.local_addr().unwrap(), Arc::new(serve));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, serve) = (stream.unwrap(), Arc::clone(&serve));
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// A request to a server of [`serve_http`].
pub struct HttpRequest {
    /// Request line and headers, with the empty line that ends them.
    head: String,
    /// Body of the request.
    pub body: Vec<u8>,
}

/// Status with its reason, and body.
pub type HttpReply = (&'static str, Vec<u8>);

impl HttpRequest {
    /// Reads the next request; returns `None` at the end of the connection.
    fn read(reader: &mut impl BufRead) -> Option<Self> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            reader.read_line(&mut head).ok().filter(|bytes| *bytes > 0)?;
        }
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |text| text.parse().unwrap())];
        reader.read_exact(&mut body).ok()?;
        Some(Self { head, body })
    }

    /// Returns the method.
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }

    /// Returns the path with the query.
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// Returns true if a header has exactly this line.
    pub fn has_header(&self, line: &str) -> bool {
        self.head.lines().any(|own| own == line)
    }
}

/// Starts a server over HTTP. `answer` returns the reply to a request, or `None` if the connection gets none: the
/// server then closes it, unless `answer` keeps a copy.
pub fn serve_http(answer: impl Fn(HttpRequest, &TcpStream) -> Option<HttpReply> + Send + Sync + 'static) -> SocketAddr {
    // A client that goes away ends its thread.
    listen(move |stream| {
        let _ = answer_requests(&stream, &answer);
    })
}

fn answer_requests(stream: &TcpStream, answer: &impl Fn(HttpRequest, &TcpStream) -> Option<HttpReply>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let request = HttpRequest::read(&mut reader)?;
        let (status, body) = answer(request, stream)?;
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
        writer.write_all(&[head.as_bytes(), &body].concat()).ok()?;
    }
}
