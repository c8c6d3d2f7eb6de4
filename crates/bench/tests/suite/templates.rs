//! Scenarios against an HTTP server that has an API of its own, by the templates of a scenario file.

use std::{collections::HashMap, net::SocketAddr, path::Path, sync::Mutex};

use thalweg_bench::{
    Quiet, Report,
    compare::{self, CompareOptions},
    report::Verdict,
    scenario::{self, ScenarioOptions},
};

use crate::common::{self, HttpReply, HttpRequest, options};

/// Behaviour of the server when a key that has a value is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnUpdate {
    Replace,
    /// The server acknowledges the update and keeps the first value.
    KeepFirst,
}

type Items = Mutex<HashMap<String, Vec<u8>>>;

/// Starts a server with `POST /items?id={key}` and `GET /items/{key}`; its threads end with the process.
fn start(on_update: OnUpdate) -> SocketAddr {
    let items = Items::default();
    common::serve_http(move |request, _| {
        let has_key = request.has_header("Api-Key: secret");
        Some(if has_key { answer(&request, &items, on_update) } else { ("401 No key", Vec::new()) })
    })
}

fn answer(request: &HttpRequest, items: &Items, on_update: OnUpdate) -> HttpReply {
    let mut items = items.lock().unwrap();
    if let Some(key) = request.target().strip_prefix("/items?id=") {
        match items.get_mut(key) {
            Some(_) if on_update == OnUpdate::KeepFirst => {}
            Some(item) => item.clone_from(&request.body),
            None => drop(items.insert(key.to_owned(), request.body.clone())),
        }
        return ("200 OK", b"{\"ok\":true}".to_vec());
    }
    match request.target().strip_prefix("/items/").and_then(|key| items.get(key)) {
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
    let flags = format!("http://{a} http://{b} --scenario {} --pairs 6 --duration 150ms --max-lag 10s", file.display());
    let report = compare::run(&options::<CompareOptions>(&flags), &mut Quiet).unwrap();
    assert_eq!(validity(&report), Verdict::Met, "{}", report.to_text());
    assert!(report.tables[0].title.starts_with("B against A, durability unknown: "), "{}", report.tables[0].title);
}
