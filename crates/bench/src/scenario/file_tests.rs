//! Tests of the schema of scenario files, and of the built-in files.

use super::*;
use crate::load::feeds::{FeedSizes, ReadFrom};
use crate::scenario::{feed_tables::Storage, mix::Kind};

const SMALL: &str = "[load]\nconnections = 2\nduration = \"1s\"\n[keys]\ncount = 10\ndistribution = \"uniform\"\n\
                     [values]\nbytes = 100\n[mix]\nread = 1\n";

#[test]
fn a_small_file_has_defaults() {
    let scenario = Scenario::parse(SMALL).unwrap();
    let Load { threads, rate, warmup, duration, .. } = scenario.load;
    assert_eq!((threads, rate, warmup, duration), (1, None, Duration::ZERO, Duration::from_secs(1)));
    assert_eq!((scenario.value_bytes.clone(), scenario.keys.theta), (100..=100, 0.99));
    assert_eq!(scenario.pace(), Pace::Closed);
}

#[test]
fn a_file_can_set_everything() {
    let text = "description = \"all\"\n[load]\nconnections = 3\nthreads = 2\nrate = 5000\narrivals = \"poisson\"\n\
                warmup = \"500ms\"\nduration = \"2m\"\n[keys]\ncount = 1_000\ndistribution = \"latest\"\ntheta = 0.7\n\
                [values]\nmin_bytes = 50\nmax_bytes = 2000\n[scans]\nrows = 7\n\
                [mix]\nread = 1\nupdate = 2\ninsert = 3\nscan = 4\nread_modify_write = 5\n";
    let scenario = Scenario::parse(text).unwrap();
    assert_eq!(scenario.pace(), Pace::Open { rate: 5000.0, arrivals: Arrivals::Poisson });
    assert_eq!((scenario.keys.distribution, scenario.keys.theta), (Distribution::Latest, 0.7));
    assert_eq!((scenario.value_bytes.clone(), scenario.scan_rows.clone()), (50..=2000, 7..=7));
    assert_eq!(scenario.mix, Mix::new([1, 2, 3, 4, 5]));
    assert_eq!((scenario.load.warmup, scenario.load.duration), (Duration::from_millis(500), Duration::from_secs(120)));
}

#[test]
fn a_file_can_change_the_rate_during_a_run() {
    let pace = |arrivals: &str| {
        let load = format!("rate = 5000\narrivals = \"{arrivals}\"\n[keys]");
        Scenario::parse(&SMALL.replace("[keys]", &load)).map(|scenario| scenario.pace().name("/s"))
    };
    assert_eq!(pace("ramp:100:10s").unwrap(), "100/s to 5000/s within 10 s");
    assert_eq!(pace("step:100:500ms").unwrap(), "100/s, after 0.5 s 5000/s");
    assert_eq!(pace("poisson").unwrap(), "5000/s Poisson");
    let error = pace("ramp:0:10s").unwrap_err();
    assert!(error.starts_with("load.arrivals: ") && error.contains("ramp:100:10s"), "{error}");
}

#[test]
fn the_built_in_files_are_ycsb_a_to_f() {
    let share = |mix: &Mix, kind| (100.0 * mix.share(kind)).round();
    for (name, text) in BUILT_IN.into_iter().filter(|(name, _)| name.starts_with("ycsb")) {
        let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let shares = Kind::ALL.map(|kind| share(&scenario.mix, kind));
        assert_eq!(shares[5..], [0.0; 7], "{name}");
        let (expected, distribution) = match name {
            "ycsb-a" => ([50.0, 50.0, 0.0, 0.0, 0.0], Distribution::Zipf),
            "ycsb-b" => ([95.0, 5.0, 0.0, 0.0, 0.0], Distribution::Zipf),
            "ycsb-c" => ([100.0, 0.0, 0.0, 0.0, 0.0], Distribution::Zipf),
            "ycsb-d" => ([95.0, 0.0, 5.0, 0.0, 0.0], Distribution::Latest),
            "ycsb-e" => ([0.0, 0.0, 5.0, 95.0, 0.0], Distribution::Zipf),
            _ => ([50.0, 0.0, 0.0, 0.0, 50.0], Distribution::Zipf),
        };
        assert_eq!(
            (&shares[..5], scenario.keys.distribution, scenario.keys.theta),
            (&expected[..], distribution, 0.99),
            "{name}"
        );
        assert_eq!(scenario.value_bytes, 1000..=1000);
        assert!(name != "ycsb-e" || scenario.scan_rows == (1..=100));
        assert!(scenario.description.starts_with("YCSB "), "{name}");
    }
}

#[test]
fn the_other_built_in_files_use_streams_groups_subjects_and_caches() {
    let names = ["events", "jobs", "messages", "sessions"].map(|name| {
        let (_, text) = BUILT_IN.into_iter().find(|(known, _)| *known == name).unwrap();
        let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!scenario.description.is_empty(), "{name}");
        scenario.mix.kinds().map(Kind::name).collect::<Vec<_>>().join(" ")
    });
    assert_eq!(names, ["append read_records", "append fetch", "publish", "cache_get cache_put cache_delete"]);
}

#[test]
fn errors_name_the_place_and_what_is_allowed() {
    let changed = |from: &str, to: &str| {
        assert!(SMALL.contains(from), "{from}");
        Scenario::parse(&SMALL.replace(from, to)).unwrap_err()
    };
    for (from, to, parts) in [
        ("read = 1", "reads = 1", &["line 10", "unknown field `reads`", "`read_modify_write`"][..]),
        ("\"uniform\"", "\"normal\"", &["line 6", "`normal`", "`zipf`", "`latest`", "`sequential`"]),
        ("\"1s\"", "\"1 hour\"", &["line 3", "\"1 hour\"", "500ms"]),
        ("duration = \"1s\"\n", "", &["`duration`"]),
        ("connections = 2", "connections = \"two\"", &["line 2", "connections = \"two\""]),
        ("connections = 2", "connections = 0", &["load.connections", "from 1 to 20000"]),
        ("connections = 2", "connections = 2\nrate = 0", &["load.rate", "above 0"]),
        ("connections = 2", "connections = 2\narrivals = \"poisson\"", &["load.arrivals", "load.rate"]),
        ("count = 10", "count = 10\ntheta = 0.5", &["keys.theta", "zipf and latest"]),
        ("\"uniform\"", "\"zipf\"\ntheta = 9", &["keys.theta", "at most 5"]),
        ("bytes = 100", "bytes = 10", &["values.bytes", "from 22 to"]),
        ("bytes = 100", "min_bytes = 100", &["values", "min_bytes and max_bytes"]),
        ("bytes = 100", "min_bytes = 200\nmax_bytes = 100", &["minimum", "maximum"]),
        ("read = 1", "read = 0", &["mix", "read_modify_write"]),
        ("read = 1", "append = 1", &["streams", "mix.append"]),
        ("read = 1", "read = 1\nfetch = 1", &["streams"]),
        ("[values]\nbytes = 100\n", "", &["keys, values", "both tables"]),
        ("read = 1", "read = -1", &["line 10", "-1"]),
        ("read = 1", "scan = 1", &["mix.scan", "[scans]"]),
        ("read = 1", "read = 1\n[scans]\nrows = 5", &["scans", "mix.scan"]),
        ("[mix]", "[mixture]", &["line 9", "unknown field `mixture`", "`mix`"]),
    ] {
        let error = changed(from, to);
        for part in parts {
            assert!(error.contains(part), "{to}: {part} in {error}");
        }
    }
}

#[test]
fn a_file_can_describe_requests_over_http() {
    let http = |table: &str| Scenario::parse(&format!("{SMALL}{table}"));
    let right = "[http]\nread = { method = \"GET\", path = \"/items/{key}\" }\n\
                 write = { method = \"POST\", path = \"/items?id={key}\", body = '{\"v\":\"{value}\"}' }\n\
                 reply = '{\"v\":\"{value}\"}'\nheaders = [\"X: 1\"]\n";
    let templates = http(right).unwrap().http.unwrap();
    assert_eq!((&*templates.headers, &*templates.write.method), ("X: 1\r\n", "POST"));
    assert!(templates.read.path.has_key() && templates.write.body.values() == 1 && templates.reply.values() == 1);
    for (from, to, part) in [
        ("GET", "HEAD", "http.read.method: \"HEAD\""),
        ("GET", "get me", "http.read.method"),
        ("/items/{key}", "items/{key}", "http.read.path: must begin with /"),
        ("/items/{key}", "/{key} HTTP/1.1", "http.read.path"),
        ("/items/{key}", "/items", "http.read: neither path nor body has a place for {key}"),
        ("/items/{key}", "/items/{key}{value}", "http.read: a read has no {value}"),
        ("body = '{\"v\":\"{value}\"}'", "body = 'v'", "http.write: neither path nor body has a place for {value}"),
        ("reply = '{\"v\":\"{value}\"}'", "reply = '{key}'", "http.reply"),
        ("X: 1", "Host: x", "http.headers"),
        ("X: 1", "X: 1\\nY: 2", "http.headers"),
        ("X: 1", "nothing", "http.headers"),
        ("[http]\nread", "[http]\nreads", "unknown field `reads`"),
    ] {
        assert!(right.contains(from), "{from}");
        let error = http(&right.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(part), "{to}: {error}");
    }
    let error = Scenario::parse(&format!("{}{right}", SMALL.replace("read = 1", "cache_get = 1"))).unwrap_err();
    assert!(error.contains("mix.cache_get: [http] has"), "{error}");
    let plain =
        "[http]\nread = { method = \"GET\", path = \"/{key}\" }\nwrite = { method = \"PUT\", path = \"/{key}\" }\n";
    let templates = http(plain).unwrap().http.unwrap();
    assert_eq!((templates.write.body.values(), templates.reply.values()), (1, 1), "the value alone is the default");
}

const LOAD: &str = "[load]\nconnections = 2\nduration = \"1s\"\n";

fn parsed(text: &str) -> Result<Scenario, String> {
    Scenario::parse(&format!("{LOAD}{text}"))
}

#[test]
fn a_file_without_keys_has_streams_groups_and_subjects() {
    let scenario = parsed(
        "[streams]\nrecord_bytes = 200\nrecords = 5\nbatch = 10\nread_records = 7\nread_from = \"random\"\n\
         [groups]\nrecords = 9\n[subjects]\nmessage_bytes = 100\nbatch = 3\nsubscribers = 4\n\
         [mix]\nappend = 1\nread_records = 1\nfetch = 1\npublish = 1\n",
    )
    .unwrap();
    let sizes = FeedSizes {
        record_bytes: 200,
        batch: 10,
        read_records: 7,
        read_from: ReadFrom::Random,
        fetch_records: 9,
        message_bytes: 100,
        messages: 3,
    };
    assert_eq!(scenario.feeds, Feeds { sizes, records: 5, subscribers: 4, storage: Storage::File });
    assert_eq!(scenario.keys.count, 0);
    let small = parsed("[streams]\nrecord_bytes = 50\n[mix]\nappend = 1\nfetch = 1\n").unwrap();
    let Feeds { sizes, records, .. } = small.feeds;
    assert_eq!((sizes.batch, sizes.fetch_records, sizes.read_from, records), (1, 100, ReadFrom::Tail, 0));
    let table = "[streams]\nrecord_bytes = 50\n[jetstream]\nstorage = \"memory\"\n[mix]\nappend = 1\n";
    assert_eq!(parsed(table).unwrap().feeds.storage, Storage::Memory);
}

#[test]
fn errors_about_feeds_name_the_table_or_the_field() {
    for (text, part) in [
        ("[mix]\nappend = 1\n", "[streams] with record_bytes"),
        ("[mix]\npublish = 1\n", "[subjects] with message_bytes"),
        ("[streams]\nrecord_bytes = 50\n[subjects]\nmessage_bytes = 50\n[mix]\nappend = 1\n", "set mix.publish"),
        ("[streams]\nrecord_bytes = 50\n[groups]\n[mix]\nappend = 1\n", "set mix.fetch"),
        ("[subjects]\nmessage_bytes = 50\n[streams]\nrecord_bytes = 50\n[mix]\npublish = 1\n", "no append"),
        ("[streams]\nrecord_bytes = 12\n[mix]\nappend = 1\n", "streams.record_bytes: 12 is not from 13"),
        (
            "[streams]\nrecord_bytes = 50\nbatch = 1001\n[mix]\nappend = 1\n",
            "streams.batch: 1001 is not from 1 to 1000",
        ),
        ("[streams]\nrecord_bytes = 1000000\nbatch = 5\n[mix]\nappend = 1\n", "streams.batch: 5 is not from 1 to 4"),
        ("[streams]\nrecord_bytes = 50\n[groups]\nrecords = 0\n[mix]\nfetch = 1\n", "groups.records"),
        ("[streams]\nrecord_bytes = 50\nread_from = \"end\"\n[mix]\nappend = 1\n", "`tail`"),
        ("[streams]\nsize = 50\n[mix]\nappend = 1\n", "record_bytes"),
        ("[mix]\ncache_get = 1\n", "keys, values: the mix has operations on keys"),
        (
            "[keys]\ncount = 5\ndistribution = \"uniform\"\n[values]\nbytes = 50\n[caches]\nmax_bytes = 5\n[mix]\ncache_get = 1\n",
            "caches.max_bytes: 5 is not from 65536",
        ),
        ("[caches]\n[streams]\nrecord_bytes = 50\n[mix]\nappend = 1\n", "caches: the mix has no cache_get"),
        ("[subjects]\nmessage_bytes = 50\nsubscribers = 0\n[mix]\npublish = 1\n", "subjects.subscribers"),
        (
            "[subjects]\nmessage_bytes = 50\n[jetstream]\nstorage = \"file\"\n[mix]\npublish = 1\n",
            "jetstream: the mix has no append",
        ),
        ("[streams]\nrecord_bytes = 50\n[jetstream]\nstorage = \"disk\"\n[mix]\nappend = 1\n", "`memory`"),
        (
            "[keys]\ncount = 5\ndistribution = \"uniform\"\n[subjects]\nmessage_bytes = 50\n[mix]\npublish = 1\n",
            "keys, values",
        ),
    ] {
        let error = parsed(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}
