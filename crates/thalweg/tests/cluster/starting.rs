//! Starts: founding, joining, founding together, and starts that are refused.

use std::time::{Duration, Instant};

use crate::{
    Cluster, Founding, PATIENCE, Tokens, get,
    node::{Node, command, free_address, run},
    until, write,
};

#[test]
fn three_empty_nodes_found_a_cluster_together() {
    let cluster = Cluster::start_as(3, Founding::Together);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    cluster.node(follower).cli(&["put", "k", "a", "1"]).ok();
    assert_eq!(cluster.node(leader).cli(&["get", "k", "a"]).ok(), "1");
}

/// The first member keeps only the hash of the admin token.
#[test]
fn a_first_start_that_fails_does_not_lose_the_admin_token() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("n0");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (http, address) = (taken.local_addr().unwrap().to_string(), free_address());
    let flags = ["--cluster", &address, "--cluster-init"];
    let mut first = command();
    first.args(["serve", "--http", &http, "--segment-bytes", "17MiB", "--spare-segments", "2", "--data"]).arg(&data);
    let failed = run(first.args(flags).env("THALWEG_NATIVE", "127.0.0.1:0"), b"");
    assert!(failed.code != Some(0) && failed.err.contains("in use"), "{failed:?}");
    let token = failed.out.lines().find_map(|line| line.strip_prefix("admin token: ")).expect("the admin token");
    let node = Node::start_of(command(), &data, &flags);
    let mut asking = command();
    asking.args(["cluster", "join-token"]).env("THALWEG_SERVER", &node.url).env("THALWEG_ADMIN_TOKEN", token);
    assert!(run(&mut asking, b"").ok().starts_with("thalweg-join-"));
}

#[test]
fn a_node_whose_directory_was_lost_is_started_in_the_same_way_and_joins_again() {
    let mut cluster = Cluster::start_as(3, Founding::Together);
    cluster.node(0).cli(&["put", "k", "a", "1"]).ok();
    let lost = cluster.follower();
    let former = cluster.status(lost)["node"].as_str().unwrap().to_owned();
    cluster.take(lost).stop();
    std::fs::remove_dir_all(cluster.data(lost)).unwrap();
    cluster.restart(lost);
    cluster.until_voters(4);
    assert_eq!(cluster.node(lost).cli(&["get", "k", "a"]).ok(), "1");
    // Both have the same name, and an operator must not remove the wrong one.
    let name = format!("n{lost}");
    let refused = cluster.cli(lost, &["remove", &name]).fails(2);
    assert!(refused.contains(&former), "{refused}");
    until("the former node is removed", || cluster.cli(lost, &["remove", &former]).code == Some(0));
    cluster.until_voters(3);
    assert!(cluster.members().iter().all(|member| member["node"] != former.as_str()));
}

/// The option `cluster` takes an IP address, while `join` may have the names of hosts, the own one among them.
#[test]
fn nodes_found_a_cluster_together_that_name_themselves_in_another_way() {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, addresses) = (Tokens::create(), [free_address(), free_address(), free_address()]);
    let all = addresses.clone().map(|address| address.replace("127.0.0.1", "localhost")).join(",");
    let nodes = addresses.each_ref().map(|address| {
        let mut binary = command();
        binary.env("THALWEG_JOIN_TOKEN", &tokens.join);
        let data = dir.path().join(address.replace(':', "-"));
        Node::start_of(binary, &data, &["--cluster", address, "--join", &all, "--expect", "3"])
    });
    for node in &nodes {
        until("all nodes vote", || node.cli(&["cluster", "status", "--json"]).out.contains("\"voters\":3"));
    }
}

#[test]
fn two_nodes_whose_directories_were_lost_wait_and_say_so() {
    let mut cluster = Cluster::start_as(3, Founding::Together);
    write(&cluster.url(0, "/v1/kv/k/a"), "1");
    let has_value = |cluster: &Cluster| {
        let reply = get(&cluster.url(0, "/v1/kv/k/a"), &[("Thalweg-Read", "stale")]);
        reply.is_some_and(|(_, body)| body == b"1")
    };
    until("the survivor has the value", || has_value(&cluster));
    for lost in [1, 2] {
        cluster.take(lost).stop();
        std::fs::remove_dir_all(cluster.data(lost)).unwrap();
    }
    for lost in [1, 2] {
        cluster.restart(lost);
    }
    // The warning comes after 7 attempts, which take 2.1 s.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        for lost in [1, 2] {
            let status = cluster.status(lost);
            assert!(status["voters"] == 0 && status["leader"].is_null(), "{status}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(get(&cluster.url(1, "/ready"), &[]).expect("an answer").0, 503);
    for lost in [1, 2] {
        let node = cluster.take(lost);
        node.signal(libc::SIGTERM);
        let (_, log) = node.wait(PATIENCE);
        assert!(log.contains("has data of the cluster, so this node founds no cluster"), "{log}");
    }
    assert!(has_value(&cluster));
}

#[test]
fn a_node_alone_becomes_the_first_member_and_keeps_its_data() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let node = Node::start(&data);
    node.cli(&["put", "k", "a", "1"]).ok();
    node.stop();
    let address = free_address();
    let node = Node::start_with(&data, &["--cluster", &address, "--cluster-init"]);
    assert!(node.line.contains("in cluster ") && node.line.contains("durability quorum"), "{}", node.line);
    until("the node leads", || node.cli(&["cluster", "status", "--json"]).out.contains("\"leads\":true"));
    assert_eq!(node.cli(&["get", "k", "a"]).ok(), "1");
    node.cli(&["put", "k", "a", "2"]).ok();
    let refused = node.cli(&["cluster", "join-token"]).fails(2);
    assert!(refused.contains("THALWEG_ADMIN_TOKEN"), "{refused}");
    node.stop();
    // A later start needs no option but the address.
    let node = Node::start_with(&data, &["--cluster", &address]);
    until("the node leads", || node.cli(&["get", "k", "a"]).out == "2");
    node.stop();
    let alone = run(command().args(["serve", "--http", "127.0.0.1:0", "--native", "off", "--data"]).arg(&data), b"");
    let refused = alone.fails(2);
    assert!(refused.contains("belongs to cluster"), "{refused}");
}

#[test]
fn a_start_that_makes_no_sense_is_refused_and_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let serve = |flags: &[&str], token: &str| {
        let mut command = command();
        command.args(["serve", "--http", "127.0.0.1:0", "--native", "off", "--data"]).arg(&data).args(flags);
        run(command.env("THALWEG_JOIN_TOKEN", token), b"").fails(2)
    };
    let address = free_address();
    let member = ["--cluster", address.as_str()];
    let missing =
        ["--cluster-ca", "nowhere.pem", "--cluster-certificate", "nowhere.pem", "--cluster-key", "nowhere.pem"];
    for (flags, token, part) in [
        (&member[..], "", "is in no cluster yet"),
        (&[&member[..], &["--join", "127.0.0.1:1"]].concat(), "", "can't join without a join token"),
        (&[&member[..], &["--join", "127.0.0.1:1"]].concat(), "thalweg-join-x", "not a join token"),
        (&[&member[..], &["--cluster-init", "--cluster-ca", "ca.pem"]].concat(), "", "cluster create-cert"),
        (&["--cluster-init"], "", "cluster_init"),
        // The files are read before the directory is created and the admin token, which is shown once, is made.
        (&[&member[..], &["--cluster-init"], &missing[..]].concat(), "", "nowhere.pem"),
    ] {
        let said = serve(flags, token);
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    assert!(!data.exists(), "nothing was created");
    // A directory with data of its own does not join, and can still be opened alone.
    let node = Node::start(&data);
    node.cli(&["put", "k", "a", "1"]).ok();
    node.stop();
    let said = serve(&[&member[..], &["--join", "127.0.0.1:1"]].concat(), &Tokens::create().join);
    assert!(said.contains("data of its own"), "{said}");
    assert!(!data.join("CLUSTER").exists(), "the refused start left credentials");
    let node = Node::start(&data);
    assert_eq!(node.cli(&["get", "k", "a"]).ok(), "1");
    node.stop();
}

#[test]
fn a_start_beside_a_running_server_does_not_keep_the_node_from_running_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (data, address) = (dir.path().join("data"), free_address());
    let node = Node::start(&data);
    node.cli(&["put", "k", "a", "1"]).ok();
    let beside = |flags: &[&str], token: &str| {
        let mut second = command();
        second.args(["serve", "--http", "127.0.0.1:0", "--native", "off", "--data"]).arg(&data).args(flags);
        let refused = run(second.env("THALWEG_JOIN_TOKEN", token), b"");
        assert!(refused.code == Some(5) && refused.err.contains("in use"), "{refused:?}");
        assert!(!refused.out.contains("admin token") && !data.join("CLUSTER").exists(), "{refused:?}");
    };
    beside(&["--cluster", &address, "--join", "127.0.0.1:1"], &Tokens::create().join);
    beside(&["--cluster", &address, "--cluster-init"], "");
    node.stop();
    let node = Node::start(&data);
    assert_eq!(node.cli(&["get", "k", "a"]).ok(), "1");
    node.stop();
}

/// A start that was killed between writing the credentials and opening the directory leaves such a directory.
#[test]
fn credentials_in_the_directory_of_a_single_node_do_not_keep_it_from_running_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (data, other, address) = (dir.path().join("data"), dir.path().join("other"), free_address());
    Node::start(&data).stop();
    Node::start_with(&other, &["--cluster", &address, "--cluster-init"]).stop();
    std::fs::copy(other.join("CLUSTER"), data.join("CLUSTER")).unwrap();
    let node = Node::start(&data);
    node.cli(&["put", "k", "a", "1"]).ok();
    node.stop();
}

/// Such advice, or a file that is left there, would do harm to the other program.
#[test]
fn a_directory_of_another_program_gets_no_credentials_and_no_advice_about_its_permissions() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(dir.path().join("passwd"), "").unwrap();
    let (address, token) = (free_address(), Tokens::create().join);
    let member = ["--cluster", address.as_str()];
    let founding = [&member[..], &["--cluster-init"]].concat();
    let joining = [&member[..], &["--join", "127.0.0.1:1"]].concat();
    for flags in [&member[..0], &founding[..], &joining[..]] {
        let mut serve = command();
        serve.args(["serve", "--http", "127.0.0.1:0", "--native", "off", "--data"]).arg(dir.path()).args(flags);
        let refused =
            run(serve.env("THALWEG_JOIN_TOKEN", if flags.contains(&"--join") { token.as_str() } else { "" }), b"");
        assert!(refused.code == Some(2) && refused.err.contains("\"passwd\""), "{refused:?}");
        assert!(!refused.err.contains("chmod") && !refused.out.contains("admin token"), "{refused:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "{flags:?}");
    }
}

#[test]
fn a_node_of_another_cluster_is_rejected() {
    let cluster = Cluster::start(1);
    let dir = tempfile::tempdir().unwrap();
    let mut stranger = command();
    stranger.env("THALWEG_JOIN_TOKEN", Tokens::create().join);
    let join = ["--cluster", &free_address(), "--join", &cluster.addresses[0]];
    let stranger = Node::start_of(stranger, &dir.path().join("data"), &join);
    let ready = get(&format!("{}/ready", stranger.url), &[]).expect("an answer");
    assert_eq!(ready.0, 503);
    assert!(String::from_utf8_lossy(&ready.1).contains("no_leader"));
    cluster.node(0).cli(&["put", "k", "a", "1"]).ok();
    assert_eq!(cluster.members().len(), 1);
}

#[test]
fn the_admin_token_can_be_replaced_while_the_node_is_stopped() {
    let mut cluster = Cluster::start(1);
    let data = cluster.data(0);
    let before = std::fs::read(data.join("CLUSTER")).unwrap();
    let refused = run(command().args(["cluster", "new-admin-token", "--data"]).arg(&data), b"").fails(5);
    assert!(refused.contains("stop the server"), "{refused}");
    assert_eq!(std::fs::read(data.join("CLUSTER")).unwrap(), before);
    cluster.take(0).stop();
    let token = run(command().args(["cluster", "new-admin-token", "--data"]).arg(&data), b"").ok();
    cluster.restart(0);
    until("the node leads", || cluster.status(0)["leads"] == true);
    cluster.cli(0, &["join-token"]).fails(2);
    let file = data.join("../admin.token");
    std::fs::write(&file, token).unwrap();
    cluster.cli(0, &["join-token", "--token-file", file.to_str().unwrap()]).ok();
}

#[test]
fn the_log_says_why_an_address_cannot_be_joined() {
    let dir = tempfile::tempdir().unwrap();
    let mut binary = command();
    binary.env("THALWEG_JOIN_TOKEN", Tokens::create().join);
    let nobody = free_address();
    let flags = ["--cluster", &free_address(), "--join", &nobody];
    let node = Node::start_of(binary, &dir.path().join("data"), &flags);
    let reason = format!("{nobody}: the other node cannot be reached");
    until("the log has the reason", || node.log_so_far().contains(&reason));
    node.stop();
}
