//! Scenarios against an HTTP server that has an API of its own, by the templates of a scenario file.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use clap::Parser as _;
use thalweg_bench::{
    Quiet, Report,
    compare::{self, CompareOptions},
    report::Verdict,
    scenario::{self, ScenarioOptions},
};

#[derive(clap::Parser)]
struct Cli<O: clap::Args> {
    #[command(flatten)]
    options: O,
}

fn options<O: clap::Args>(flags: &str) -> O {
    Cli::parse_from(["bench"].into_iter().chain(flags.split_whitespace())).options
}

/// Behaviour of the server when a key that has a value is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnUpdate {
    Replace,
    /// The server acknowledges the update and keeps the first value.
    KeepFirst,
}

type Items = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// Starts a server with `POST /items?id={key}` and `GET /items/{key}`; its threads end with the process.
fn start(on_update: OnUpdate) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, items) = (listener.local_addr().unwrap(), Items::default());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, items) = (stream.unwrap(), Arc::clone(&items));
            // A client that goes away ends its thread.
            thread::spawn(move || serve(stream, &items, on_update));
        }
    });
    address
}

fn serve(mut stream: TcpStream, items: &Items, on_update: OnUpdate) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (mut request, mut len, mut has_key) = (String::new(), 0, false);
        reader.read_line(&mut request).ok().filter(|bytes| *bytes > 0)?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            match line.trim().split_once(": ") {
                Some(("Content-Length", text)) => len = text.parse().ok()?,
                Some(("Api-Key", "secret")) => has_key = true,
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body).ok()?;
        let (status, body) =
            if has_key { answer(&request, body, items, on_update) } else { ("401 No key", Vec::new()) };
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), &body].concat()).ok()?;
    }
}

fn answer(request: &str, body: Vec<u8>, items: &Items, on_update: OnUpdate) -> (&'static str, Vec<u8>) {
    let mut items = items.lock().unwrap();
    let path = request.split(' ').nth(1).unwrap_or_default();
    if let Some(key) = path.strip_prefix("/items?id=") {
        match items.get_mut(key) {
            Some(_) if on_update == OnUpdate::KeepFirst => {}
            Some(item) => *item = body,
            None => drop(items.insert(key.to_owned(), body)),
        }
        return ("200 OK", b"{\"ok\":true}".to_vec());
    }
    match path.strip_prefix("/items/").and_then(|key| items.get(key)) {
        Some(item) => ("200 OK", item.clone()),
        None => ("404 Not Found", Vec::new()),
    }
}

fn write_file(path: &Path, reply: &str, headers: &str) {
    let text = format!(
        "[load]\nconnections = 2\nduration = \"150ms\"\n[keys]\ncount = 50\ndistribution = \"uniform\"\n[values]\nbytes = 60\n\
         [mix]\nread = 2\nupdate = 1\ninsert = 1\nread_modify_write = 1\n[http]\n\
         read = {{ method = \"GET\", path = \"/items/{{key}}\" }}\n\
         write = {{ method = \"POST\", path = \"/items?id={{key}}\", body = '{{\"data\":\"{{value}}\"}}' }}\n\
         reply = '{reply}'\nheaders = [{headers}]\n"
    );
    std::fs::write(path, text).unwrap();
}

const REPLY: &str = "{\"data\":\"{value}\"}";
const HEADERS: &str = "\"Api-Key: secret\"";

fn validity(report: &Report) -> Verdict {
    report.checks.iter().find(|check| check.required.starts_with("all answered")).unwrap().verdict
}

#[test]
fn a_server_with_its_own_api_is_measured_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("items.toml");
    let run = |address: SocketAddr, more: &str| {
        let flags = format!("{} --target http://{address} --rounds 1 --max-lag 10s {more}", file.display());
        scenario::run(&options::<ScenarioOptions>(&flags), &mut Quiet)
    };
    write_file(&file, REPLY, HEADERS);
    let report = run(start(OnUpdate::Replace), "").unwrap();
    assert_eq!(validity(&report), Verdict::Met, "{}", report.to_text());
    assert!(report.to_text().contains("durability: unknown"), "{}", report.to_text());
    let faulty = start(OnUpdate::KeepFirst);
    let report = run(faulty, "").unwrap();
    let text = report.to_text();
    assert_eq!(validity(&report), Verdict::Missed, "{text}");
    assert!(text.contains("was acknowledged before the read was sent"), "{text}");
    let error = run(faulty, "--durability os").unwrap_err().to_string();
    assert!(error.contains("http.headers"), "{error}");
    // Without a place for the value in the reply only the status is checked.
    write_file(&file, "", HEADERS);
    let report = run(faulty, "").unwrap();
    assert_eq!(validity(&report), Verdict::Met, "{}", report.to_text());
    assert!(report.to_text().contains("http.reply has no place"), "{}", report.to_text());
    write_file(&file, REPLY, "");
    let error = run(faulty, "").unwrap_err().to_string();
    assert!(error.contains("status 401"), "{error}");
}

#[test]
fn two_servers_with_their_own_api_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("items.toml");
    write_file(&file, REPLY, HEADERS);
    let [a, b] = [(), ()].map(|()| start(OnUpdate::Replace));
    let flags = format!("http://{a} http://{b} --scenario {} --pairs 6 --duration 50ms --max-lag 10s", file.display());
    let report = compare::run(&options::<CompareOptions>(&flags), &mut Quiet).unwrap();
    assert_eq!(validity(&report), Verdict::Met, "{}", report.to_text());
    assert!(report.tables[0].title.starts_with("B against A, durability unknown: "), "{}", report.tables[0].title);
}
