//! A real browser that visits hostile pages. Skipped where no Chromium is installed.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use thalweg_server::config::AllowedHosts;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use crate::{
    installed::browser,
    skip::skip,
    support::{Node, holds},
};

/// Longest time in which the browser starts and does what a page asks. Only failures take this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running browser, killed when dropped.
struct Browser {
    child: Child,
    _profile: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a browser for which `evil.example` leads to this machine, as after a rebinding.
fn visit(browser: &PathBuf, url: &str, more: &[&str]) -> Browser {
    let profile = tempfile::tempdir().unwrap();
    let child = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--no-proxy-server"])
        .arg("--host-resolver-rules=MAP evil.example 127.0.0.1")
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(more)
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the browser starts");
    Browser { child, _profile: profile }
}

/// Returns the document that the browser shows for a URL.
async fn shown(browser: &PathBuf, url: &str) -> String {
    let mut visiting = visit(browser, url, &["--dump-dom"]);
    let mut out = visiting.child.stdout.take().expect("piped");
    let read = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut out, &mut text).map(|_| text)
    });
    tokio::time::timeout(PATIENCE, read).await.expect("the browser ends in time").unwrap().unwrap()
}

/// A website that serves one page, and passes on what the page reports.
async fn website(page: String) -> (u16, mpsc::UnboundedReceiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (send, reports) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, page.clone(), send.clone()));
        }
    });
    (port, reports)
}

async fn serve(mut stream: TcpStream, page: String, reports: mpsc::UnboundedSender<Value>) {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok()).unwrap_or(0);
    while bytes.len() < head + length {
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    }
    if text.starts_with("post /report") {
        let _ = reports.send(serde_json::from_slice(&bytes[head..]).unwrap());
    }
    let page = if text.starts_with("get / ") { page.as_str() } else { "" };
    let reply = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{page}",
        page.len()
    );
    let _ = stream.write_all(reply.as_bytes()).await;
}

/// Returns a page that tries to read and write in every way that a browser permits without the server's consent.
fn hostile_page(node: u16) -> String {
    const SCRIPT: &str = r#"
const results = {};
const attempt = async (name, work) => {
  const late = new Promise(done => setTimeout(() => done("no answer"), 5000));
  try { results[name] = String(await Promise.race([work(), late])); } catch (error) { results[name] = "error " + error.name; }
};
const element = (kind, name, url) => new Promise(done => {
  const made = document.createElement(kind);
  made.onload = () => done("loaded");
  made.onerror = () => done("failed");
  made[name] = url;
  document.body.appendChild(made);
});
const form = (url, type) => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.name = "frame" + Math.random();
  document.body.appendChild(frame);
  const made = document.createElement("form");
  Object.assign(made, {method: "post", enctype: type, action: url, target: frame.name});
  const field = document.createElement("input");
  Object.assign(field, {name: '{"then":[{"op":"put","keyspace":"stolen","key":"k","value":"', value: '"}]}'});
  made.appendChild(field);
  document.body.appendChild(made);
  frame.onload = () => done("loaded");
  made.submit();
});
const txn = JSON.stringify({then: [{op: "put", keyspace: "stolen", key: "k", value: "v"}]});
const plain = {"content-type": "text/plain"};
const run = async () => {
  await attempt("read", () => fetch(NODE + "/v1/kv/a/secret").then(reply => reply.text()));
  await attempt("read without consent", () => fetch(NODE + "/v1/kv/a/secret", {mode: "no-cors"}).then(reply => reply.text()));
  await attempt("append", () => fetch(NODE + "/v1/streams/stolen/records", {method: "POST", mode: "no-cors", body: new Blob(["x"])}));
  await attempt("add", () => fetch(NODE + "/v1/kv/a/counter?add=1", {method: "POST", mode: "no-cors"}));
  await attempt("transaction as text", () => fetch(NODE + "/v1/txn", {method: "POST", mode: "no-cors", headers: plain, body: txn}));
  await attempt("transaction without type", () => fetch(NODE + "/v1/txn", {method: "POST", mode: "no-cors", body: new Blob([txn])}));
  await attempt("put", () => fetch(NODE + "/v1/kv/a/secret", {method: "PUT", body: "stolen"}));
  await attempt("delete", () => fetch(NODE + "/v1/kv/a/secret", {method: "DELETE"}));
  await attempt("beacon", async () => navigator.sendBeacon(NODE + "/v1/streams/stolen/records", "x"));
  await attempt("image", () => element("img", "src", NODE + "/v1/kv/a/image"));
  await attempt("script", () => element("script", "src", NODE + "/v1/kv/a/script"));
  await attempt("events", () => new Promise((done, fail) => {
    const events = new EventSource(NODE + "/v1/watch/a?from=1");
    events.onmessage = event => done(event.data);
    events.onerror = () => done("failed");
  }));
  await attempt("form", () => form(NODE + "/v1/txn", "text/plain"));
  await attempt("usual form", () => form(NODE + "/v1/streams/stolen/records", "application/x-www-form-urlencoded"));
  results.pwned = String(window.pwned);
  await fetch("/report", {method: "POST", body: JSON.stringify(results)});
};
run();
"#;
    let script = SCRIPT.replace("NODE", &format!("\"http://127.0.0.1:{node}\""));
    format!("<!doctype html><title>hostile</title><body><script>{script}</script>")
}

#[tokio::test]
async fn hostile_pages_neither_read_nor_write() {
    let Some(browser) = browser() else {
        return skip("hostile_pages_neither_read_nor_write", "no Chromium is installed");
    };
    let node = Node::with(|config| config.allowed_hosts = AllowedHosts::default()).await;
    let (port, own) = (node.address.port(), node.address.to_string());
    let host = [("host", own.as_str())];
    let image = b"<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'/>";
    for (key, value) in [("secret", &b"top-secret"[..]), ("script", b"window.pwned = 1"), ("image", image)] {
        node.call("PUT", &format!("/v1/kv/a/{key}"), &host, value).await.is(204);
    }
    let (site, mut reports) = website(hostile_page(port)).await;
    for name in ["evil.example", "localhost"] {
        let _visiting = visit(&browser, &format!("http://{name}:{site}/"), &["--remote-debugging-port=0"]);
        let report = tokio::time::timeout(PATIENCE, reports.recv()).await.expect("the page reports in time").unwrap();
        for read in ["read", "read without consent", "events"] {
            assert!(!report[read].as_str().unwrap().contains("top-secret"), "{name}: {report}");
        }
        assert_eq!(report["read"], "error TypeError", "{report}");
        assert_eq!((&report["image"], &report["script"]), (&json!("failed"), &json!("failed")), "{report}");
        assert_eq!(report["pwned"], "undefined");
    }
    let rebound = shown(&browser, &format!("http://evil.example:{port}/v1/kv/a/secret")).await;
    assert!(!rebound.contains("top-secret"), "{rebound}");
    holds(&rebound, "host_not_allowed");
    holds(&shown(&browser, &format!("http://127.0.0.1:{port}/")).await, "/openapi.json");

    let read = async |target: &str| node.call("GET", target, &host, b"").await;
    assert_eq!(read("/v1/kv/a/secret").await.is(200).body, b"top-secret");
    read("/v1/kv/a/counter").await.is(404);
    assert_eq!(read("/v1/streams").await.is(200).json()["streams"], json!([]));
    let keyspaces = read("/v1/kv").await.is(200).json();
    assert_eq!(keyspaces["keyspaces"].as_array().unwrap().len(), 1, "{keyspaces}");
    node.stop().await;
}
