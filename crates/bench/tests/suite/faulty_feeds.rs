//! A server over HTTP that loses, repeats, swaps or garbles records and messages: a scenario against it is never good.

use std::{
    io::Write as _,
    net::{SocketAddr, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use thalweg_bench::{Report, report::Verdict};

use crate::common::{self, HttpReply, HttpRequest};

/// Fault of a server, at the tenth append, fetch or publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Loses,
    Repeats,
    Swaps,
    Garbles,
    /// A second delivery that the server calls so.
    Redelivers,
}

const AT: usize = 10;

struct Faulty {
    fault: Fault,
    /// True if fetches have the fault and appends none.
    is_group: bool,
    records: Mutex<Vec<String>>,
    /// Number of records that the group has delivered.
    delivered: Mutex<usize>,
    requests: AtomicUsize,
    subscribers: Mutex<Vec<TcpStream>>,
}

impl Faulty {
    /// Starts a server; its threads end with the process.
    fn start(fault: Fault, is_group: bool) -> SocketAddr {
        let (records, delivered, subscribers) = (Mutex::default(), Mutex::default(), Mutex::default());
        let server = Self { fault, is_group, records, delivered, requests: AtomicUsize::new(0), subscribers };
        common::serve_http(move |request, stream| server.answer(&request, stream))
    }

    fn subscribe(&self, mut stream: &TcpStream) {
        let line = "{\"subscribed\":true}\n";
        write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{line}\r\n", line.len()).unwrap();
        self.subscribers.lock().unwrap().push(stream.try_clone().unwrap());
    }

    fn answer(&self, request: &HttpRequest, stream: &TcpStream) -> Option<HttpReply> {
        let target = request.target();
        let body = std::str::from_utf8(&request.body).unwrap();
        let lines: Vec<String> = body.lines().map(str::to_owned).collect();
        Some(match request.method() {
            "PUT" => ("201 Created", b"{}".to_vec()),
            "DELETE" => ("204 No Content", Vec::new()),
            "GET" if target.starts_with("/v1/subjects/") => {
                self.subscribe(stream);
                return None;
            }
            "GET" if target.contains("/records") => ("200 OK", self.read(target)),
            "GET" => ("404 Not Found", Vec::new()),
            _ if target.ends_with("/fetch") => ("200 OK", self.fetch().into_bytes()),
            _ if target.ends_with("/ack") => ("200 OK", b"{\"settled\":2,\"lapsed\":[]}".to_vec()),
            _ if target.starts_with("/v1/subjects/") => ("200 OK", self.publish(lines).into_bytes()),
            _ => ("200 OK", self.append(lines).into_bytes()),
        })
    }

    /// Applies the fault to the lines of the tenth request.
    fn damaged(&self, mut lines: Vec<String>) -> Vec<String> {
        if self.requests.fetch_add(1, Ordering::Relaxed) != AT {
            return lines;
        }
        match self.fault {
            Fault::None | Fault::Redelivers => {}
            Fault::Loses => lines.truncate(lines.len() - 1),
            Fault::Repeats => lines.extend(lines.clone()),
            Fault::Swaps => lines.reverse(),
            Fault::Garbles => lines[0] = lines[0].replace('.', ","),
        }
        lines
    }

    fn append(&self, lines: Vec<String>) -> String {
        let mut records = self.records.lock().unwrap();
        let (first, count) = (records.len(), lines.len());
        records.extend(if self.is_group { lines } else { self.damaged(lines) });
        format!("{{\"count\":{count},\"first\":{first},\"last\":{}}}", first + count - 1)
    }

    fn read(&self, target: &str) -> Vec<u8> {
        let field = |name: &str| {
            let value = target.split(['?', '&']).find_map(|part| part.strip_prefix(name)).unwrap();
            value.parse::<usize>().unwrap()
        };
        let (records, mut body) = (self.records.lock().unwrap(), Vec::new());
        for (offset, record) in records.iter().enumerate().skip(field("from=")).take(field("limit=")) {
            body.extend((17 + record.len() as u32).to_le_bytes());
            body.extend((offset as u64).to_le_bytes());
            body.extend([0; 9]);
            body.extend(record.as_bytes());
        }
        body.extend([0; 20]);
        body
    }

    fn fetch(&self) -> String {
        let (records, mut delivered) = (self.records.lock().unwrap(), self.delivered.lock().unwrap());
        let from = *delivered;
        let mut offsets: Vec<(usize, u32)> = (from..records.len().min(from + 2)).map(|offset| (offset, 1)).collect();
        *delivered += offsets.len();
        if offsets.len() == 2 && self.requests.fetch_add(1, Ordering::Relaxed) > AT {
            self.requests.store(0, Ordering::Relaxed);
            match self.fault {
                Fault::Loses => offsets.truncate(1),
                Fault::Repeats => offsets.insert(0, (from - 1, 1)),
                Fault::Redelivers => offsets.insert(0, (from - 1, 2)),
                Fault::Swaps => offsets.reverse(),
                Fault::None | Fault::Garbles => {}
            }
        }
        let message = |(offset, deliveries): &(usize, u32)| {
            let payload = records[*offset].replace('"', "\\\"");
            format!("{{\"offset\":{offset},\"deliveries\":{deliveries},\"payload\":\"{payload}\"}}")
        };
        let messages: Vec<String> = offsets.iter().map(message).collect();
        if messages.is_empty() {
            "{}".to_owned()
        } else {
            format!("{{\"attempt\":1,\"messages\":[{}]}}", messages.join(","))
        }
    }

    fn publish(&self, lines: Vec<String>) -> String {
        let mut subscribers = self.subscribers.lock().unwrap();
        let count = lines.len();
        for line in self.damaged(lines) {
            let line = format!("{{\"payload\":\"{}\"}}\n", line.replace('"', "\\\""));
            subscribers.retain_mut(|stream| write!(stream, "{:x}\r\n{line}\r\n", line.len()).is_ok());
        }
        format!("{{\"messages\":{count},\"delivered\":{},\"missed\":0}}", subscribers.len())
    }
}

/// Runs a scenario with these tables against a new server with a fault.
fn run(fault: Fault, tables: &str) -> Report {
    let address = Faulty::start(fault, tables.contains("[groups]"));
    let text = format!("[load]\nconnections = 3\nduration = \"150ms\"\n{tables}");
    common::run_scenario(&text, &format!("--target http://{address} --rounds 1 --max-lag 10s")).unwrap()
}

/// Returns the measured value of the check whose name ends with `name`, if the check is not met.
fn missed(report: &Report, name: &str) -> Option<String> {
    let check = report.checks.iter().find(|check| check.what.ends_with(name)).unwrap();
    (check.verdict != Verdict::Met).then(|| check.measured.clone())
}

#[test]
fn faults_of_a_stream_are_found() {
    let tables = "[streams]\nrecord_bytes = 60\nbatch = 2\nread_records = 10\n[mix]\nappend = 1\n";
    let right = run(Fault::None, tables);
    assert_eq!(right.verdict(), Verdict::Met, "{}", right.to_text());
    for (fault, kind) in [
        (Fault::Loses, "lost"),
        (Fault::Repeats, "duplicated"),
        (Fault::Swaps, "reordered"),
        (Fault::Garbles, "with wrong content"),
    ] {
        let report = run(fault, tables);
        let measured = missed(&report, "the stream after the runs").unwrap_or_else(|| panic!("{fault:?} is not found"));
        let count = measured.split([':', ',']).find_map(|part| part.trim().strip_suffix(kind));
        assert!(count.is_some_and(|count| count.trim() != "0"), "{fault:?}: {measured}");
        assert_eq!(report.verdict(), Verdict::Missed);
    }
}

#[test]
fn faults_of_a_group_are_found_and_redeliveries_shown() {
    let tables = "[streams]\nrecord_bytes = 60\n[groups]\nrecords = 2\n[mix]\nappend = 3\nfetch = 1\n";
    let right = run(Fault::None, tables);
    assert_eq!(right.verdict(), Verdict::Met, "{}", right.to_text());
    let again = run(Fault::Redelivers, tables);
    assert_eq!(again.verdict(), Verdict::Met, "{}", again.to_text());
    assert!(!again.to_text().contains(" 0 redelivered"), "{}", again.to_text());
    let lost = run(Fault::Loses, tables);
    let measured = missed(&lost, "the group after the runs").expect("a loss is found");
    assert!(!measured.contains(" 0 lost"), "{measured}");
    for (fault, part) in [(Fault::Repeats, "delivered twice"), (Fault::Swaps, "was delivered after")] {
        let report = run(fault, tables);
        assert_ne!(report.verdict(), Verdict::Met, "{fault:?}");
        assert!(report.to_text().contains(part), "{fault:?}: {}", report.to_text());
    }
}

#[test]
fn lost_messages_are_shown_and_other_faults_found() {
    let tables = "[subjects]\nmessage_bytes = 60\nbatch = 2\nsubscribers = 2\n[mix]\npublish = 1\n";
    let lost = run(Fault::Loses, tables);
    assert_eq!(lost.verdict(), Verdict::Met, "{}", lost.to_text());
    assert!(lost.to_text().contains(" 2 lost, 0 of them"), "{}", lost.to_text());
    for (fault, part) in
        [(Fault::Repeats, "4 duplicated"), (Fault::Swaps, "reordered"), (Fault::Garbles, "2 with wrong content")]
    {
        let report = run(fault, tables);
        let measured = missed(&report, "the subscribers").unwrap_or_else(|| panic!("{fault:?} is not found"));
        assert!(measured.contains(part) && !measured.contains(&format!(" 0 {part}")), "{fault:?}: {measured}");
    }
}

#[test]
fn a_search_ends_with_an_error_if_subscribers_find_faults() {
    let address = Faulty::start(Fault::Repeats, false);
    let text = "[load]\nconnections = 3\nduration = \"150ms\"\n\
                [subjects]\nmessage_bytes = 60\nbatch = 2\nsubscribers = 2\n[mix]\npublish = 1\n";
    let search = format!("--target http://{address} --rounds 1 --max-lag 10s --search p99<10s");
    let error = common::run_scenario(text, &search).unwrap_err().to_string();
    assert!(error.contains("duplicated"), "{error}");
}
