//! A headless Chromium that opens a page, and observations of the page in it.

use std::{
    io::Read as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Longest time for which the browser may run. Only failures take this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Observations of a browser that opened a page at one width.
#[derive(Debug, PartialEq)]
pub(super) struct PageObservations {
    /// Width of the viewport in CSS pixels.
    pub(super) viewport: u64,
    /// Width of the page's content in CSS pixels. If it exceeds the viewport, the page scrolls sideways.
    pub(super) content: u64,
    /// Number of drawings that are visible on the page.
    pub(super) drawings: u64,
    /// Addresses that the page requested from the browser.
    pub(super) requests: Vec<String>,
    /// Messages that the page wrote to the browser's console.
    pub(super) console: Vec<String>,
}

/// Opens a page once in a frame of each of these widths, in CSS pixels. The browser's own files are in `dir`.
pub(super) fn open(browser: &Path, dir: &Path, page: &str, widths: &[u64]) -> Vec<PageObservations> {
    widths.iter().map(|width| open_at(browser, dir, page, *width)).collect()
}

fn open_at(browser: &Path, dir: &Path, page: &str, width: u64) -> PageObservations {
    // A document inside a frame has the frame's size. The surrounding page may inspect it.
    let page = page.replace('&', "&amp;").replace('"', "&quot;");
    let outer = format!(
        "<!doctype html><title>outer</title><body><pre id=\"seen\"></pre>\
         <iframe style=\"width:{width}px;height:800px;border:0\" srcdoc=\"{page}\"></iframe><script>{SCRIPT}</script></body>"
    );
    let file = dir.join("outer.html");
    std::fs::write(&file, outer).expect("the page can be written");
    let mut child = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--disable-background-networking", "--enable-logging=stderr", "--dump-dom", "--window-size=1600,1200"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the browser starts");
    let (mut out, mut errors) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let reading = std::thread::spawn(move || {
        let (mut document, mut log) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| errors.read_to_end(&mut log));
            let _ = out.read_to_end(&mut document);
        });
        (String::from_utf8_lossy(&document).into_owned(), String::from_utf8_lossy(&log).into_owned())
    });
    let begun = Instant::now();
    while child.try_wait().expect("the browser can be asked").is_none() {
        if begun.elapsed() > PATIENCE {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let (document, log) = reading.join().expect("the output is read");
    let seen = document.split("<pre id=\"seen\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let seen = seen.unwrap_or_else(|| panic!("the browser shows no page:\n{document}\n{log}"));
    let seen: serde_json::Value = serde_json::from_str(seen).unwrap_or_else(|error| panic!("{error}: {seen}"));
    let number = |name: &str| seen[name].as_u64().unwrap_or_else(|| panic!("{name} in {seen}"));
    let requests = seen["requests"].as_array().expect("a list");
    PageObservations {
        viewport: number("viewport"),
        content: number("content"),
        drawings: number("drawings"),
        requests: requests.iter().filter_map(|request| request.as_str().map(str::to_owned)).collect(),
        console: log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect(),
    }
}

const SCRIPT: &str = r#"
const frame = document.querySelector("iframe");
frame.onload = () => {
  const inner = frame.contentDocument, root = inner.documentElement;
  const visible = [...inner.querySelectorAll("svg")].filter(drawing => drawing.getBoundingClientRect().width > 50);
  const requests = frame.contentWindow.performance.getEntriesByType("resource").map(entry => entry.name);
  document.getElementById("seen").textContent = JSON.stringify({
    viewport: root.clientWidth, content: root.scrollWidth, drawings: visible.length, requests,
  });
};
"#;
