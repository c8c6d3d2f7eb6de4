//! Imports and exports of files behave alike against a server and against a directory.

use crate::client::{each_place, json};

#[test]
fn files_go_in_and_come_out() {
    let dir = tempfile::tempdir().unwrap();
    let csv = dir.path().join("zips.csv");
    std::fs::write(&csv, "zip,city\n00501,Holtsville\n10001,\"New York, NY\"\n").unwrap();
    let lines: String = (0..5_000).map(|n| format!("{{\"n\":{n},\"id\":\"k{n:05}\"}}\n")).collect();
    let ndjson = dir.path().join("events.ndjson");
    std::fs::write(&ndjson, &lines).unwrap();
    let (csv, ndjson) = (csv.to_str().unwrap(), ndjson.to_str().unwrap());
    each_place(|place| {
        place.cli(&["import", csv, "--keyspace", "zips", "--format", "csv", "--key", "zip"]).ok();
        assert_eq!(place.cli(&["get", "zips", "10001"]).ok(), r#"{"zip":"10001","city":"New York, NY"}"#);
        let done = json(&place.cli(&["import", ndjson, "--stream", "events", "--format", "ndjson", "--json"]).ok());
        assert_eq!((done["records"].as_u64(), done["last"].as_u64()), (Some(5_000), Some(4_999)));
        assert_eq!(place.cli(&["export", "--stream", "events", "--format", "lines"]).ok(), lines);
        let keyed = ["import", ndjson, "--keyspace", "events", "--format", "ndjson", "--key", "id", "--batch", "77"];
        place.cli(&keyed).ok();
        assert_eq!(place.cli(&["get", "events", "k00042"]).ok(), r#"{"n":42,"id":"k00042"}"#);
        assert_eq!(place.cli(&["export", "--keyspace", "events"]).ok().lines().count(), 5_000);
        place.cli(&["import", ndjson, "--stream", "tail", "--format", "ndjson", "--skip", "4990"]).ok();
        assert_eq!(place.cli(&["read", "tail"]).ok().lines().count(), 10);
        let file = dir.path().join("out.ndjson");
        let out = file.to_str().unwrap();
        place.cli(&["export", "--stream", "events", "--format", "lines", "--output", out]).ok();
        for missing in ["--stream", "--keyspace"] {
            place.cli(&["export", missing, "nowhere", "--output", out]).fails(3);
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), lines, "a slip does not empty the file");
        place.cli(&["import", ndjson, "--keyspace", "k", "--format", "ndjson"]).fails(2);
        place.cli(&["import", "missing.csv", "--stream", "s", "--format", "lines"]).fails(3);
        let failed = place.cli(&["import", csv, "--stream", "s", "--format", "ndjson"]).fails(2);
        assert!(failed.contains("--skip 0"), "{failed}");
    });
}

#[test]
fn an_import_that_meets_a_bad_record_says_where_to_go_on() {
    each_place(|place| {
        let lines: String = (0..250).map(|n| format!("{{\"n\":{n}}}\n")).chain(["oops\n".to_owned()]).collect();
        let args = ["import", "-", "--stream", "s", "--format", "ndjson", "--batch", "100"];
        let failed = place.cli_with(&args, lines.as_bytes()).fails(2);
        assert!(failed.contains("record 251 is not JSON") && failed.contains("--skip 250"), "{failed}");
        let mended = lines.replace("oops", "{\"n\":250}");
        place.cli_with(&[&args[..], &["--skip", "250"]].concat(), mended.as_bytes()).ok();
        assert_eq!(place.cli(&["read", "s", "--payload-only"]).ok(), mended);
    });
}

#[test]
fn an_import_goes_on_behind_a_record_without_its_key() {
    each_place(|place| {
        let lines = "{\"id\":\"a\"}\n{\"id\":\"b\"}\n{}\n{\"id\":\"c\"}\n";
        let import = |skip: u64| {
            let skip = skip.to_string();
            let args = ["import", "-", "--keyspace", "k", "--format", "ndjson", "--key", "id", "--skip", &skip];
            place.cli_with(&args, lines.as_bytes())
        };
        let failed = import(0).fails(2);
        assert!(failed.contains("record 3 has no field") && failed.contains("leave it out with --skip 3"), "{failed}");
        assert_eq!(place.cli(&["scan", "k", "--keys-only"]).ok(), "a\nb\n", "the records before it are stored");
        import(3).ok();
        assert_eq!(place.cli(&["scan", "k", "--keys-only"]).ok(), "a\nb\nc\n");
    });
}

#[test]
fn a_csv_file_needs_no_format_and_its_keys_may_be_composed_or_generated() {
    let dir = tempfile::tempdir().unwrap();
    let csv = dir.path().join("zips.csv");
    let rows = "country,zip,city\nUS,10001,\"New York, NY\"\nFR,75001,Paris\n";
    std::fs::write(&csv, rows).unwrap();
    let csv = csv.to_str().unwrap();
    each_place(|place| {
        place.cli(&["import", csv, "--keyspace", "zips", "--key", "country", "--key", "zip"]).ok();
        assert_eq!(place.cli(&["scan", "zips", "--keys-only"]).ok(), "FR/75001\nUS/10001\n");
        place.cli(&["import", csv, "--keyspace", "numbered", "--generate-keys", "--key-prefix", "z"]).ok();
        assert!(place.cli(&["get", "numbered", "z000000000002"]).ok().contains("Paris"));
        let columns = ["export", "--keyspace", "numbered", "--format", "csv", "--columns", "country,zip,city"];
        assert_eq!(place.cli(&columns).ok(), rows, "the table comes back");
        place.cli(&["put", "pairs", "a,b", "say \"x\"\nand y"]).ok();
        let exported = place.cli(&["export", "--keyspace", "pairs", "--format", "csv"]).ok();
        assert_eq!(exported, "key,value\n\"a,b\",\"say \"\"x\"\"\nand y\"\n");
        let again = ["import", "-", "--keyspace", "again", "--format", "csv", "--key", "key", "--value", "value"];
        place.cli_with(&again, exported.as_bytes()).ok();
        assert_eq!(place.cli(&["get", "again", "a,b"]).ok(), "say \"x\"\nand y");
        place.cli(&["append", "events", "one", "--key", "k", "--header", "source=shop"]).ok();
        place.cli(&["append", "events", "two"]).ok();
        let exported = place.cli(&["export", "--stream", "events", "--format", "csv"]).ok();
        let lines: Vec<_> = exported.lines().collect();
        assert_eq!(lines[0], "offset,time,key,headers,tombstone,payload");
        assert!(lines[1].starts_with("0,20") && lines[1].contains("source"), "{exported}");
        assert!(lines[2].starts_with("1,20") && lines[2].ends_with(",,,false,two"), "{exported}");
        place.cli_with(&["put", "pairs", "bytes"], b"\xff").ok();
        assert!(place.cli(&["export", "--keyspace", "pairs", "--format", "csv"]).fails(2).contains("ndjson"));
        assert!(place.cli(&["import", "-", "--stream", "s"]).fails(2).contains("--format"));
        place.cli(&["import", csv, "--keyspace", "k"]).fails(2);
    });
}
