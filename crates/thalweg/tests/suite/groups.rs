//! Tests of `thalweg groups` and `thalweg consume`, against a server and against a directory.

use serde_json::{Value, json};

use crate::{
    client::each_place,
    node::{self, Target},
};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn show(place: &Target) -> Value {
    lines(&place.cli(&["groups", "show", "jobs", "g", "--json"]).ok()).remove(0)
}

#[test]
fn a_member_consumes_what_is_there_and_acks_what_it_has_printed() {
    each_place(|place| {
        place.cli(&["append", "jobs", "a", "b", "c"]).ok();
        assert!(place.cli(&["consume", "jobs", "--group", "g"]).fails(3).contains("`groups create`"));
        let consume = ["consume", "jobs", "--group", "g", "--create", "--payload-only"];
        assert_eq!(place.cli(&[&consume[..], &["--limit", "2"]].concat()).ok(), "a\nb\n");
        assert_eq!(place.cli(&consume).ok(), "c\n");
        assert_eq!(place.cli(&consume).ok(), "", "all is acked");
        let group = show(place);
        assert_eq!((&group["acked"], &group["pending"], &group["lag"]), (&3.into(), &0.into(), &0.into()));
        assert_eq!((&group["stream"], &group["members"][0]["name"]), (&"jobs".into(), &"default".into()));
    });
}

#[test]
fn what_is_not_acked_is_settled_by_hand() {
    each_place(|place| {
        place.cli(&["append", "jobs", "a", "b", "c", "d", "--key", "k"]).ok();
        place.cli(&["groups", "create", "jobs", "g", "--max-deliveries", "2", "--dead-letters", "jobs.dead"]).ok();
        let consume = ["consume", "jobs", "-g", "g", "-m", "me", "--ack", "none", "--json"];
        let first = lines(&place.cli(&consume).ok());
        assert_eq!(first.len(), 4);
        assert_eq!(
            (&first[1]["payload"], &first[1]["deliveries"], &first[1]["key"]),
            (&"b".into(), &1.into(), &"k".into())
        );
        let number = first[0]["attempt"].as_u64().unwrap();
        let attempt = number.to_string();
        let of = |verb: &'static str| ["groups", verb, "jobs", "g"];
        let with = |verb: &'static str, rest: &[&str]| place.cli(&[&of(verb)[..], rest].concat());
        assert!(with("ack", &[&format!("{attempt}:0-1")]).ok().contains("2 records"));
        let again = with("ack", &[&format!("{attempt}:1")]);
        assert_eq!(again.out, "", "a failed ack does not print ok");
        assert!(again.fails(4).contains(&format!("lapsed: {attempt}:1; done: 0 records")));
        assert!(with("nack", &[&format!("{attempt}:2"), "--reject", "--reason", "no good"]).ok().contains("1 record,"));
        with("nack", &[&attempt, "--delay", "1s", "--reject"]).fails(2);
        with("extend", &[&attempt, "--by", "1h"]).ok();
        with("nack", &[&attempt, "--uncounted"]).ok();
        let late = with("extend", &[&attempt, "--by", "1h"]);
        assert_eq!(late.out, "");
        assert!(late.fails(4).contains("done: 0 attempts"));
        let ack = json!({ "op": "ack", "stream": "jobs", "group": "g", "attempts": [{ "attempt": number }] });
        let commit = json!({ "writes": [ack] }).to_string();
        assert!(place.cli(&["commit", &commit]).fails(4).contains("consumer group \"g\" has lapsed"));
        let again = lines(&place.cli(&consume).ok());
        assert_eq!((again.len(), &again[0]["offset"], &again[0]["deliveries"]), (1, &3.into(), &1.into()));
        assert!(with("ack", &["nonsense"]).fails(2).contains("7:0-4,9"));
    });
}

#[test]
fn groups_are_created_listed_configured_sought_and_deleted() {
    each_place(|place| {
        assert_eq!(place.cli(&["groups"]).ok(), "");
        place.cli(&["append", "jobs", "a", "b"]).ok();
        let create = ["groups", "create", "jobs", "g", "--order", "per-key", "--from", "end", "--ack-deadline", "5s"];
        place.cli(&create).ok();
        assert!(place.cli(&create).err.contains("was not changed"));
        place.cli(&["groups", "create", "other", "h"]).ok();
        let names = |args: &[&str]| -> Vec<String> {
            let groups = lines(&place.cli(&[args, &["--json"]].concat()).ok());
            groups.iter().map(|group| format!("{}/{}", group["stream"], group["name"]).replace('"', "")).collect()
        };
        assert_eq!(names(&["groups"]), ["jobs/g", "other/h"]);
        assert_eq!(names(&["groups", "list", "jobs"]), ["jobs/g"]);
        assert!(place.cli(&["groups", "list"]).ok().lines().next().unwrap().contains("lag  pending  dying"));
        assert_eq!(show(place)["config"]["order"], "per_key");
        assert_eq!((&show(place)["cursor"], &show(place)["config"]["ack_deadline_seconds"]), (&2.into(), &5.0.into()));
        place.cli(&["groups", "configure", "jobs", "g", "--max-pending", "7", "--max-deliveries", "3"]).ok();
        place.cli(&["groups", "config", "jobs", "g", "--any-deliveries"]).ok();
        let config = show(place)["config"].clone();
        assert_eq!((&config["max_pending"], &config["max_deliveries"]), (&7.into(), &Value::Null));
        assert_eq!(config["ack_deadline_seconds"], 5.0, "what is not named stays");
        assert!(place.cli(&["groups", "seek", "jobs", "g", "--to", "1"]).ok().contains("offset 1"));
        assert!(place.cli(&["groups", "seek", "jobs", "g", "--since", "1h"]).ok().contains("offset 0"));
        place.cli(&["groups", "seek", "jobs", "g"]).fails(2);
        place.cli(&["groups", "seek", "jobs", "g", "--to", "end", "--since", "1h"]).fails(2);
        assert_eq!(place.cli(&["consume", "jobs", "-g", "g", "--payload-only"]).ok(), "a\nb\n");
        place.cli(&["groups", "delete", "jobs", "g"]).ok();
        place.cli(&["groups", "show", "jobs", "g"]).fails(3);
        assert!(place.cli(&["groups", "list", "nowhere"]).fails(3).contains("nowhere"));
        let error = &lines(&place.cli(&["groups", "show", "jobs", "g", "--json"]).fails(3))[0];
        assert_eq!((error["code"].as_str(), error["exit"].as_u64()), (Some("no_such_group"), Some(3)));
    });
}

#[test]
fn a_command_that_fails_gives_its_record_back() {
    each_place(|place| {
        place.cli(&["append", "jobs", "good", "bad", "also good"]).ok();
        place.cli(&["groups", "create", "jobs", "g"]).ok();
        let consume = |command: &str, delay: &str| {
            place.cli(&["consume", "jobs", "-g", "g", "--exec", command, "--retry-delay", delay])
        };
        let checks = "read -r line; echo \"$RECORD_OFFSET $line\"; test \"$line\" != bad";
        let run = consume(checks, "1h");
        assert_eq!(run.out, "0 good\n1 bad\n2 also good\n");
        let failed = run.fails(1);
        assert!(failed.contains("offset 1") && failed.contains("failed 1 time\n"), "{failed}");
        let group = show(place);
        assert_eq!((&group["acked"], &group["pending"]), (&2.into(), &1.into()));
        assert_eq!(consume(checks, "1h").ok(), "", "not before its delay");
        place.cli(&["groups", "seek", "jobs", "g", "--to", "1"]).ok();
        assert_eq!(consume("echo $RECORD_DELIVERIES", "1h").ok(), "1\n1\n");
        place.cli(&["consume", "jobs", "-g", "g", "--exec", "true", "--payload-only"]).fails(2);
    });
}

#[test]
fn a_member_is_pushed_what_comes_as_far_as_its_credit_goes() {
    let dir = tempfile::tempdir().unwrap();
    let node = node::Node::start(dir.path());
    node.cli(&["append", "jobs", "a", "b", "c", "d", "e"]).ok();
    node.cli(&["groups", "create", "jobs", "g"]).ok();
    let (url, push) = (node.url.clone(), ["consume", "jobs", "-g", "g", "--push", "--payload-only"]);
    let takes = |more: &'static [&'static str]| {
        let url = url.clone();
        std::thread::spawn(move || {
            let mut command = node::command();
            command.args(push).args(more).args(["--server", &url]);
            node::run(&mut command, b"")
        })
    };
    let show = || lines(&node.cli(&["groups", "show", "jobs", "g", "--json"]).ok()).remove(0);
    // The limit exceeds the credit, so the member must ack in between.
    assert_eq!(takes(&["--batch", "2", "--limit", "5"]).join().unwrap().ok(), "a\nb\nc\nd\ne\n");
    assert_eq!((&show()["acked"], &show()["pending"]), (&5.into(), &0.into()));
    let waits = takes(&["--batch", "1", "--limit", "3", "--ack", "none", "--credit-bytes", "1MiB"]);
    node.cli(&["append", "jobs", "f", "g"]).ok();
    while show()["in_flight"] != 1 {}
    assert_eq!(show()["lag"], 1, "its credit is used up");
    // A seek drops the pending delivery and frees its credit, so the next record is delivered; after a seek back the
    // first one is delivered again with another attempt.
    node.cli(&["groups", "seek", "jobs", "g", "--to", "6"]).ok();
    while show()["in_flight"] != 1 {}
    node.cli(&["groups", "seek", "jobs", "g", "--to", "5"]).ok();
    assert_eq!(waits.join().unwrap().ok(), "f\ng\nf\n");
    node.cli(&["consume", "jobs", "-g", "none", "--push"]).fails(3);
    node.stop();
    let away = dir.path().to_str().unwrap();
    let local = node::run(node::command().args(push).args(["--data", away]), b"");
    assert!(local.fails(2).contains("needs a server"));
}

#[test]
fn a_member_that_waits_gets_what_is_appended() {
    let dir = tempfile::tempdir().unwrap();
    let node = node::Node::start(dir.path());
    node.cli(&["groups", "create", "jobs", "g"]).ok();
    let url = node.url.clone();
    let waits = std::thread::spawn(move || {
        let mut command = node::command();
        command.args(["consume", "jobs", "-g", "g", "--follow", "--limit", "1", "--payload-only", "--server", &url]);
        node::run(&mut command, b"")
    });
    node.cli(&["append", "jobs", "a"]).ok();
    assert_eq!(waits.join().unwrap().ok(), "a\n");
    assert_eq!(node.cli(&["consume", "jobs", "-g", "g", "--wait", "50ms"]).ok(), "");
    node.stop();
}
