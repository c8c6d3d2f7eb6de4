//! Clients that generators make from the OpenAPI document. Each test is skipped where its generator is not installed;
//! `THALWEG_REQUIRE_GENERATORS=1` makes that a failure.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use thalweg_server::OPENAPI;

use crate::{skip::skip, support::Node};

/// Returns the first program of this name in the search path.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Reports that a test is skipped because a program is missing.
fn missing(test: &str, reason: &str) {
    assert!(
        std::env::var_os("THALWEG_REQUIRE_GENERATORS").is_none(),
        "THALWEG_REQUIRE_GENERATORS is set, and {reason}"
    );
    skip(test, reason);
}

/// Runs a program to its end on another thread, so that the server can answer it.
async fn run(mut command: Command) {
    let shown = format!("{command:?}");
    let ran = tokio::task::spawn_blocking(move || command.stdin(Stdio::null()).output()).await.unwrap();
    let output = ran.unwrap_or_else(|error| panic!("{shown}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{shown}\n{}{}", text(&output.stdout), text(&output.stderr));
}

fn command(program: &Path, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.current_dir(dir).args(args);
    command
}

const PYTHON: &str = r#"
import sys
from io import BytesIO
from client import Client
from client.api.default import kv_get, kv_put, stream_append
from client.models import Record, Records
from client.types import File

node = Client(base_url=sys.argv[1])
put = kv_put.sync_detailed("k", "a/b", client=node, body=File(payload=BytesIO(b"value")))
assert put.status_code == 204, put
got = kv_get.sync_detailed("k", "a/b", client=node)
assert got.status_code == 200 and got.parsed.payload.read() == b"value", got
body = Records(records=[Record(payload="one"), Record(payload="two")])
appended = stream_append.sync_detailed("s", client=node, body=body)
assert appended.status_code == 200 and (appended.parsed.first, appended.parsed.last) == (0, 1), appended
"#;

#[tokio::test]
async fn a_generated_python_client_puts_gets_and_appends() {
    let Some(generator) = program("openapi-python-client") else {
        return missing("a_generated_python_client_puts_gets_and_appends", "openapi-python-client is not installed");
    };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("openapi.json"), OPENAPI.as_str()).unwrap();
    fs::write(dir.path().join("use.py"), PYTHON).unwrap();
    let generate = ["generate", "--path", "openapi.json", "--output-path", "client", "--meta", "none"];
    run(command(&generator, dir.path(), &generate)).await;
    let operations = OPENAPI.matches("\"operationId\"").count();
    let made = fs::read_dir(dir.path().join("client/api/default")).unwrap().count();
    assert_eq!(made, operations + 1, "a module for each operation, and __init__.py");
    let node = Node::with(|config| config.allowed_hosts = Default::default()).await;
    // The packages of the generator are those that the client needs.
    let beside = generator.with_file_name("python");
    let python = if beside.is_file() { beside } else { "python3".into() };
    run(command(&python, dir.path(), &["use.py", &format!("http://{}", node.address)])).await;
    node.stop().await;
}

const TYPESCRIPT: &str = r#"
import { createClient } from "./client/client/index.js";
import { kvGet, kvPut, streamAppend } from "./client/sdk.gen.js";

const client = createClient({ baseUrl: process.argv[2] });
const check = (holds: boolean, what: unknown) => {
  if (!holds) throw new Error(JSON.stringify(what));
};
const put = await kvPut({ client, path: { keyspace: "k", key: "a/b" }, body: new Blob(["value"]) });
check(put.response.status === 204, put);
const got = await kvGet({ client, path: { keyspace: "k", key: "a/b" }, parseAs: "text" });
check(got.response.status === 200 && (got.data as unknown) === "value", got);
const body = { records: [{ payload: "one" }, { payload: "two" }] };
const appended = await streamAppend({ client, path: { stream: "s" }, body });
const { first, last } = appended.data as { first: number; last: number };
check(appended.response.status === 200 && first === 0 && last === 1, appended);
"#;

#[tokio::test]
async fn a_generated_typescript_client_puts_gets_and_appends() {
    let (Some(generator), Some(tsx)) = (program("openapi-ts"), program("tsx")) else {
        return missing(
            "a_generated_typescript_client_puts_gets_and_appends",
            "@hey-api/openapi-ts or tsx is not installed",
        );
    };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("openapi.json"), OPENAPI.as_str()).unwrap();
    fs::write(dir.path().join("use.ts"), TYPESCRIPT).unwrap();
    fs::write(dir.path().join("package.json"), r#"{"type": "module"}"#).unwrap();
    run(command(&generator, dir.path(), &["-i", "openapi.json", "-o", "client"])).await;
    let node = Node::with(|config| config.allowed_hosts = Default::default()).await;
    run(command(&tsx, dir.path(), &["use.ts", &format!("http://{}", node.address)])).await;
    node.stop().await;
}
