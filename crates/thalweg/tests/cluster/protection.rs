//! TLS between the nodes: with an authority, with the secret alone, strangers, and renewal without a restart.

use std::{
    fs,
    path::{Path, PathBuf},
};

use thalweg_server::cluster::Credentials;

use crate::{
    Cluster, Founding, Links, get,
    node::{Node, Run, command, free_address, run},
    put, until,
};

fn cli(args: &[&str]) -> Run {
    run(command().arg("cluster").args(args), b"")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Makes an authority in a directory, and certificates of `count` nodes.
pub fn create(dir: &Path, count: usize) {
    cli(&["create-ca", "--to", text(dir)]).ok();
    (0..count).for_each(|number| certify(dir, number));
}

/// Makes a certificate of a node, or renews it.
fn certify(dir: &Path, number: usize) {
    let name = format!("n{number}");
    let files = ["--ca", text(dir), "--to", text(dir), "--replace"];
    cli(&[&["create-cert", &name, "127.0.0.1"][..], &files].concat()).ok();
}

/// Returns the flags of a node that name its files.
pub fn flags(dir: &Path, number: usize) -> Vec<String> {
    let path = |name: String| text(&dir.join(name)).to_owned();
    [
        ("--cluster-ca", "cluster-ca.pem".to_owned()),
        ("--cluster-certificate", format!("n{number}.pem")),
        ("--cluster-key", format!("n{number}-key.pem")),
    ]
    .into_iter()
    .flat_map(|(flag, name)| [flag.to_owned(), path(name)])
    .collect()
}

/// Writes at one node and reads at the others. Repeats a request that fails, because a busy machine can elect another
/// leader.
fn assert_serves(cluster: &Cluster) {
    until("the value is written", || cluster.node(0).cli(&["put", "k", "a", "1815"]).code == Some(0));
    for (_, node) in cluster.running() {
        until("the value is read", || {
            let got = node.cli(&["get", "k", "a"]);
            assert!(got.code != Some(0) || got.out == "1815", "{}", got.out);
            got.code == Some(0)
        });
    }
}

#[test]
fn three_nodes_with_an_authority() {
    assert_serves(&Cluster::start_with(3, Founding::ByFirst, Links::Authority));
}

#[test]
fn three_nodes_with_the_secret_in_tls() {
    assert_serves(&Cluster::start_with(3, Founding::Together, Links::Secret));
}

/// Starts a node that tries to join, and asserts that its log contains `part` as the reason why it was refused.
fn refused(cluster: &Cluster, token: &str, flags: &[&str], part: &str) {
    let data = cluster.root.join("stranger");
    let mut binary = command();
    binary.env("THALWEG_JOIN_TOKEN", token);
    let (address, join) = (free_address(), cluster.addresses[0].clone());
    let flags = [&["--cluster", &address, "--join", &join][..], flags].concat();
    let node = Node::start_of(binary, &data, &flags);
    let ready = get(&format!("{}/ready", node.url), &[]).expect("an answer");
    assert_eq!(ready.0, 503);
    // It tries again and again; the log of its end has the reason.
    std::thread::sleep(std::time::Duration::from_secs(1));
    node.signal(libc::SIGTERM);
    let (_, log) = node.wait(crate::PATIENCE);
    assert!(log.contains(part), "{part:?} is not in {log}");
    assert_eq!(cluster.members().len(), 1);
    fs::remove_dir_all(data).unwrap();
}

#[test]
fn strangers_do_not_join_and_are_told_why() {
    let cluster = Cluster::start_with(1, Founding::ByFirst, Links::Authority);
    let certs = cluster.root.join("certs");
    let others: PathBuf = cluster.root.join("others");
    create(&others, 1);
    let (ours, theirs) = (flags(&certs, 0), flags(&others, 0));
    fn strs(flags: &[String]) -> Vec<&str> {
        flags.iter().map(String::as_str).collect()
    }
    let join = &cluster.tokens.join;
    refused(&cluster, join, &strs(&theirs), "signed by another authority");
    refused(&cluster, join, &["--cluster-tls"], "certificate");
    refused(&cluster, join, &[], "give both the same cluster_tls");
    refused(&cluster, &crate::Tokens::create().join, &strs(&ours), "different clusters");
    let id = Credentials::parse(join).unwrap().cluster;
    let wrong = Credentials::of_cluster(id).unwrap().0.join_token();
    refused(&cluster, &wrong, &strs(&ours), "secret");
    assert_serves(&cluster);
}

/// The node still has a valid certificate and the secret, and its connections are open when it is removed.
#[test]
fn a_removed_node_loses_its_rights_while_it_runs() {
    let mut cluster = Cluster::start_with(3, Founding::ByFirst, Links::Authority);
    let leader = cluster.leader();
    let gone = if leader == 2 { 1 } else { 2 };
    let name = format!("n{gone}");
    let is_member = |cluster: &Cluster| cluster.members().iter().any(|member| member["name"] == name.as_str());
    until("the node is removed", || {
        cluster.cli(leader, &["remove", &name]).code == Some(0)
            || cluster.cli(leader, &["members"]).code == Some(0) && !is_member(&cluster)
    });
    let removed = cluster.take(gone);
    let code = |path: &str| {
        let (status, body) = get(&format!("{}{path}", removed.url), &[]).expect("an answer");
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        (status, body["code"].as_str().unwrap_or_default().to_owned())
    };
    let stopped = (503, "stopped_serving".to_owned());
    until("the node is not ready", || code("/ready") == stopped);
    assert_eq!(code("/v1/kv/k/key"), stopped);
    assert_eq!(put(&format!("{}/v1/kv/k/key", removed.url), "late").map(|(status, _)| status), Some(503));
    assert_serves(&cluster);
    removed.signal(libc::SIGTERM);
    let (_, log) = removed.wait(crate::PATIENCE);
    assert!(log.contains("this node was removed from the cluster"), "{log}");
}

#[test]
fn certificates_and_the_authority_are_replaced_while_the_nodes_run() {
    let mut cluster = Cluster::start_with(3, Founding::Together, Links::Authority);
    let (certs, new) = (cluster.root.join("certs"), cluster.root.join("new"));
    let hang_up = |cluster: &Cluster| {
        for (_, node) in cluster.running() {
            node.signal(libc::SIGHUP);
        }
    };
    create(&new, 3);
    // A node may still read at an earlier signal, so the files change at once.
    let replace = |name: &str, contents: &[u8]| {
        fs::write(certs.join("unfinished"), contents).unwrap();
        fs::rename(certs.join("unfinished"), certs.join(name)).unwrap();
    };
    // First all nodes trust both authorities; then they show certificates of the new one.
    let authority = |dir: &Path| fs::read(dir.join("cluster-ca.pem")).unwrap();
    replace("cluster-ca.pem", &[authority(&certs), authority(&new)].concat());
    hang_up(&cluster);
    for file in (0..3).flat_map(|number| [format!("n{number}-key.pem"), format!("n{number}.pem")]) {
        replace(&file, &fs::read(new.join(&file)).unwrap());
    }
    hang_up(&cluster);
    // A node that starts now trusts only the new authority, so the others must show their new certificates.
    replace("cluster-ca.pem", &authority(&new));
    let restarted = cluster.follower();
    cluster.take(restarted).stop();
    cluster.restart(restarted);
    until("the node is back", || cluster.node(restarted).cli(&["put", "k", "b", "2"]).code == Some(0));
    cluster.until_voters(3);
    assert_serves(&cluster);
    // A broken file changes nothing.
    replace("n0.pem", b"nothing");
    hang_up(&cluster);
    assert_serves(&cluster);
}

#[test]
fn files_are_kept_and_mistakes_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("certs");
    let missing = cli(&["create-cert", "n0", "--ca", text(&certs)]).fails(2);
    assert!(missing.contains("create-ca"), "{missing}");
    create(&certs, 1);
    let again = cli(&["create-ca", "--to", text(&certs)]).fails(2);
    assert!(again.contains("exists already"), "{again}");
    let files = ["--ca", text(&certs), "--to", text(&certs)];
    let again = cli(&[&["create-cert", "n0"][..], &files].concat()).fails(2);
    assert!(again.contains("--replace"), "{again}");
    let wrong = cli(&[&["create-cert", "a b"][..], &files].concat()).fails(2);
    assert!(wrong.contains("neither a host name nor an IP address"), "{wrong}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(certs.join("n0-key.pem")).unwrap().permissions());
    assert_eq!(mode & 0o77, 0, "only the owner reads a key");
    // A node whose certificate another authority has signed does not start.
    let others = dir.path().join("others");
    create(&others, 1);
    fs::copy(others.join("cluster-ca.pem"), certs.join("cluster-ca.pem")).unwrap();
    let mut serve = command();
    serve.args(["serve", "--http", "127.0.0.1:0", "--native", "off", "--cluster-init", "--data"]);
    serve.arg(dir.path().join("data")).args(["--cluster", &free_address()]).args(flags(&certs, 0));
    let refused = run(&mut serve, b"").fails(2);
    for part in ["would reject the certificate", "signed by another authority", "create-cert"] {
        assert!(refused.contains(part), "{part:?} is not in {refused}");
    }
}
