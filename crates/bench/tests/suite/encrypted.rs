//! Scenarios over TLS and QUIC against a server in this process: small, to see that they run, check and report.

use thalweg_bench::{
    BenchError, Quiet, Report,
    compare::{self, CompareOptions},
    scenario::{self, ScenarioOptions},
};

use crate::{
    common::{assert_right, options},
    node::{Node, TcpPort},
};

/// Runs a scenario for a short time.
fn run(scenario: &str, flags: &str) -> Result<Report, BenchError> {
    let short = "--connections 4 --duration 300ms --warmup 50ms --rounds 2 --max-lag 10s";
    scenario::run(&options::<ScenarioOptions>(&format!("{scenario} {short} {flags}")), &mut Quiet)
}

#[test]
fn every_operation_runs_over_tls_and_quic() {
    let node = Node::with_port(TcpPort::Tls);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("all.toml");
    let tables = "[load]\nconnections = 4\nthreads = 2\nwarmup = \"50ms\"\nduration = \"300ms\"\n\
                  [keys]\ncount = 200\ndistribution = \"uniform\"\n[values]\nbytes = 3000\n\
                  [streams]\nrecord_bytes = 100\nbatch = 3\nrecords = 300\n[groups]\nrecords = 5\n\
                  [subjects]\nmessage_bytes = 60\nbatch = 3\nsubscribers = 3\n\
                  [mix]\nread = 4\nupdate = 2\ninsert = 1\nread_modify_write = 1\nappend = 2\nread_records = 2\n\
                  fetch = 2\npublish = 2\n";
    std::fs::write(&file, tables).unwrap();
    for (transport, name) in [("tls", "over TLS"), ("quic", "over QUIC (TLS 1.3)")] {
        let flags = format!("{} --durability os", node.target(transport));
        let report = run(&file.display().to_string(), &flags).unwrap();
        assert_right(&report);
        let text = report.to_text();
        for part in
            [name, "durability: os", "2, on which TLS and QUIC run", " records delivered, 0 lost", "0 reordered"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(text.contains("to each of 3 subscribers") && text.contains("received, 0 lost, 0 of them"), "{text}");
    }
    // A page of a scan is longer than a task reads at a time.
    for transport in ["tls", "quic"] {
        assert_right(&run("ycsb-e --keys 500", &node.target(transport)).unwrap());
        assert_right(&run("sessions --keys 300", &node.target(transport)).unwrap());
        assert_right(&run("ycsb-a --keys 200 --rate 300", &node.target(transport)).unwrap());
    }
}

#[test]
fn quic_runs_beside_plain_tcp() {
    let node = Node::start();
    assert_right(&run("ycsb-a --keys 200", &node.target("quic")).unwrap());
    // As the server prints its address, with the transport named apart.
    let plain = node.target("quic").replace("thalweg+quic", "thalweg");
    assert_right(&run("ycsb-a --keys 200 --protocol native-quic", &plain).unwrap());
    let (both, short) =
        (node.native, "--pairs 6 --duration 150ms --warmup 10ms --connections 2 --keys 50 --max-lag 10s");
    let line = format!(
        "thalweg://{both} thalweg+quic://{both} --fingerprint {} --scenario ycsb-a --durability os {short}",
        node.fingerprint
    );
    let report = compare::run(&options::<CompareOptions>(&line), &mut Quiet).unwrap();
    assert_right(&report);
    assert!(report.to_text().contains("native protocol over QUIC (TLS 1.3)"), "{}", report.to_text());
}

#[test]
fn a_wrong_certificate_or_transport_is_named() {
    let plain = Node::start();
    let other = format!("--target thalweg+quic://{} --fingerprint {}", plain.native, "ab".repeat(32));
    let error = run("ycsb-a --keys 200", &other).unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    let error = run("ycsb-a --keys 200", &plain.target("tls")).unwrap_err().to_string();
    assert!(error.contains(&plain.native.to_string()) && error.contains("TLS"), "{error}");
    let tls = Node::with_port(TcpPort::Tls);
    let error = run("ycsb-a --keys 200", &format!("--target thalweg://{}", tls.native)).unwrap_err().to_string();
    assert!(error.contains(&tls.native.to_string()), "{error}");
}
