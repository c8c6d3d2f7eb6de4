//! The files in `deploy/` do what they say: their commands run as plain processes, with other addresses and paths.

use std::path::{Path, PathBuf};

use crate::{
    Tokens,
    node::{Node, Run, command, free_address, run},
    until,
};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(deploy().join(path)).unwrap()
}

/// Returns the list behind a key of the compose file, after a place in it.
fn list(text: &str, key: &str) -> Vec<String> {
    let rest = text.split_once(&format!("{key}: [")).expect("the key is there").1;
    let (list, _) = rest.split_once(']').expect("the list ends");
    serde_json::from_str(&format!("[{list}]")).expect("a list of strings")
}

/// Runs the check of a container's health.
fn check(compose: &str, node: &Node) -> Run {
    let check = list(compose, "test");
    assert_eq!(check[..2], ["CMD", "thalweg"]);
    let check = check.iter().skip(2).map(|word| word.replace("http://127.0.0.1:7070", &node.url));
    run(command().args(check), b"")
}

#[test]
fn the_containers_of_the_compose_file_found_a_cluster() {
    const NAMES: [&str; 3] = ["n1", "n2", "n3"];
    let compose = text("compose/compose.yaml");
    let dir = tempfile::tempdir().unwrap();
    let tokens = Tokens::create();
    let addresses = NAMES.map(|_| free_address());
    let nodes: Vec<_> = NAMES
        .iter()
        .zip(&addresses)
        .map(|(name, address)| {
            let service = compose.split_once(&format!("\n  {name}:\n")).expect("the service is there").1;
            let words = list(service, "command");
            assert_eq!(words[..3], ["serve", "--data", "/var/lib/thalweg"], "the node writes to its volume");
            let here = |word: &String| {
                let port = address.rsplit_once(':').expect("a port").1;
                let word = word.replace("0.0.0.0:7072", &format!("0.0.0.0:{port}"));
                let word = word.replace("0.0.0.0:7070", "127.0.0.1:0").replace("0.0.0.0:7071", "127.0.0.1:0");
                NAMES.iter().zip(&addresses).fold(word, |word, (name, at)| word.replace(&format!("{name}:7072"), at))
            };
            let flags: Vec<_> = words[3..].iter().map(here).collect();
            let mut binary = command();
            binary.env("THALWEG_JOIN_TOKEN", &tokens.join);
            Node::start_of(binary, &dir.path().join(name), &flags.iter().map(String::as_str).collect::<Vec<_>>())
        })
        .collect();
    until("each node answers", || nodes.iter().all(|node| node.cli(&["put", "k", "a", "1"]).code == Some(0)));
    until("all are members, by their names", || {
        let members = nodes[0].cli(&["cluster", "members", "--json"]).out;
        let members: serde_json::Value = serde_json::from_str(&members).unwrap_or_default();
        let members = members["members"].as_array().cloned().unwrap_or_default();
        let mut names: Vec<_> = members.iter().filter_map(|member| member["name"].as_str()).collect();
        names.sort_unstable();
        names == NAMES
    });
    nodes.iter().for_each(|node| drop(check(&compose, node).ok()));
    let dockerfile = text("compose/Dockerfile");
    // The volume begins with what the image has there, and a node does not start in a directory with other files.
    let home = "--no-create-home --shell /usr/sbin/nologin thalweg";
    let directory = "install --directory --owner=thalweg --group=thalweg --mode=0700 /var/lib/thalweg\n";
    let parts = [home, directory, "VOLUME /var/lib/thalweg\n", "ENTRYPOINT [\"thalweg\"]", "STOPSIGNAL SIGTERM"];
    for part in parts {
        assert!(dockerfile.contains(part), "{part:?} is not in {dockerfile}");
    }
    // `docker compose restart` sends SIGTERM to a node. One that is left alone is not healthy, whether it led before or
    // not.
    let mut nodes = nodes.into_iter();
    let alone = nodes.next().expect("a node");
    nodes.for_each(Node::stop);
    until("the health check fails", || check(&compose, &alone).code == Some(5));
    alone.stop();
}

#[test]
fn the_unit_starts_reloads_and_stops_a_node() {
    let unit = text("systemd/thalweg@.service");
    let value = |key: &str| {
        let mut lines = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        lines.next_back().unwrap_or_else(|| panic!("no {key}"))
    };
    assert_eq!(value("ExecStart").split_whitespace().collect::<Vec<_>>()[..2], ["/usr/local/bin/thalweg", "serve"]);
    assert_eq!(value("ExecReload"), "/bin/kill -HUP $MAINPID");
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("db1.toml");
    std::fs::write(&config, "durability = \"disk\"\n").unwrap();
    let (config, data) = (config.to_str().unwrap(), dir.path().join("db1"));
    let rest = value("ExecStart").split_once("serve ").unwrap().1;
    let rest = rest.replace("/etc/thalweg/%i.toml", config).replace("/var/lib/thalweg/%i", data.to_str().unwrap());
    let words: Vec<_> = rest.split_whitespace().collect();
    assert_eq!(words, ["--config", config, "--data", data.to_str().unwrap()]);
    let node = Node::start_with(&data, &words[..2]);
    node.cli(&["put", "k", "a", "1"]).ok();
    node.signal(libc::SIGHUP);
    assert_eq!(node.cli(&["get", "k", "a"]).ok(), "1");
    node.stop();
    // A wrong configuration ends with the code after which the unit does not start the node again.
    std::fs::write(config, "cluster = 7\n").unwrap();
    let refused = run(command().arg("serve").args(&words), b"");
    assert_eq!(refused.code.map(|code| code.to_string()).as_deref(), Some(value("RestartPreventExitStatus")));
}
