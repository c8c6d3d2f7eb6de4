use std::{path::Path, time::Duration};

use super::*;

#[test]
fn the_documented_file_holds_every_knob_at_its_default() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/thalweg.toml"));
    if std::env::var_os("THALWEG_BLESS").is_some() {
        std::fs::write(path, example(&DEFAULTS)).unwrap();
    }
    let text = std::fs::read_to_string(path).expect("docs/thalweg.toml");
    assert_eq!(text, example(&DEFAULTS), "run this test with THALWEG_BLESS=1 to rewrite docs/thalweg.toml");
    let resolved = Layers::new().file_text(path, &text).unwrap().resolve().unwrap();
    assert_eq!(resolved.config, *DEFAULTS);
    for knob in KNOBS {
        // Keys in comments follow from `memory`. If the file set them, `memory` would have no effect.
        let is_comment = memory::FOLLOWERS.contains(&knob.name);
        let source = if is_comment { Source::Default } else { Source::File(path.to_owned()) };
        assert_eq!(resolved.source(knob.name), Some(&source), "{}", knob.name);
        assert!(text.contains(&format!("\n{}{} = ", if is_comment { "# " } else { "" }, knob.name)), "{}", knob.name);
        assert!(knob.help.to_ascii_lowercase().contains("cost"), "{} does not state its cost", knob.name);
    }
}

#[test]
fn flags_win_over_environment_over_file_over_defaults() {
    let mut flags = ConfigLayer::default();
    flags.set("max_scans", "4").unwrap();
    let layers = Layers::new()
        .flags(flags)
        .environment([("THALWEG_MAX_SCANS", "3"), ("THALWEG_MAX_TAILS", "3"), ("PATH", "x"), ("THALWEG_SERVER", "x")])
        .unwrap()
        .file_text(Path::new("t.toml"), "max_scans = 2\nmax_tails = 2\nmax_connections = 2")
        .unwrap();
    let resolved = layers.resolve().unwrap();
    let config = &resolved.config;
    assert_eq!((config.max_scans, config.max_tails, config.max_connections), (4, 3, 2));
    assert_eq!(config.max_body_bytes, DEFAULTS.max_body_bytes);
    assert_eq!(resolved.source("max_scans"), Some(&Source::Flag("--max-scans".into())));
    assert_eq!(resolved.source("max_tails"), Some(&Source::Environment("THALWEG_MAX_TAILS".into())));
    assert_eq!(resolved.source("max_connections"), Some(&Source::File("t.toml".into())));
    assert_eq!(resolved.source("max_body_bytes"), Some(&Source::Default));
    let text = resolved.explain();
    for knob in KNOBS {
        assert!(text.contains(knob.name), "{} is not explained", knob.name);
    }
    assert!(text.contains("--max-scans") && text.contains("sum"));
}

#[test]
fn unknown_keys_and_bad_values_say_where() {
    let file = |text| Layers::new().file_text(Path::new("t.toml"), text);
    let error = file("max_scan = 2").unwrap_err().to_string();
    assert!(error.contains("t.toml") && error.contains("max_scan"), "{error}");
    assert!(matches!(file("max_scans = "), Err(ConfigError::Syntax { .. })));
    assert!(file("max_scans = -1").is_err());
    assert!(file("[max_scans]").is_err());
    let error = Layers::new().environment([("THALWEG_MAX_SCANS", "many")]).unwrap_err().to_string();
    assert!(error.contains("THALWEG_MAX_SCANS"), "{error}");
    assert!(matches!(Layers::new().file(Path::new("/no/such/file")), Err(ConfigError::File { .. })));
}

#[test]
fn unknown_variables_are_refused_except_those_of_others() {
    let with = |name: &str, value: &str| Layers::new().environment([(name, value)]);
    let error = with("THALWEG_MAX_SCAN", "3").unwrap_err().to_string();
    assert!(error.contains("THALWEG_MAX_SCAN") && error.contains("did you mean max_scans?"), "{error}");
    for wrong in ["THALWEG_CONFIG", "THALWEG_", "THALWEG_MEMROY", "THALWEG_PORT"] {
        assert!(matches!(with(wrong, "3"), Err(ConfigError::At { .. })), "{wrong}");
    }
    for (name, value) in [
        ("THALWEG_SERVER", "http://127.0.0.1:7070"),
        ("THALWEG_BENCH_DIR", "/tmp"),
        ("THALWEG_FENCING_TOKEN", "7"),
        ("THALWEG_LOCK_KEYSPACE", "locks"),
        ("THALWEG_LOCK_KEY", "a"),
        ("THALWEGS", "x"),
        ("PATH", "x"),
        // Kubernetes sets these for services named `thalweg` and `thalweg-native`.
        ("THALWEG_SERVICE_HOST", "10.0.0.1"),
        ("THALWEG_SERVICE_PORT", "7070"),
        ("THALWEG_SERVICE_PORT_HTTP", "7070"),
        ("THALWEG_PORT", "tcp://10.0.0.1:7070"),
        ("THALWEG_PORT_7070_TCP", "tcp://10.0.0.1:7070"),
        ("THALWEG_PORT_7070_TCP_ADDR", "10.0.0.1"),
        ("THALWEG_NATIVE_SERVICE_HOST", "10.0.0.2"),
        ("THALWEG_NATIVE_PORT_7071_UDP_PROTO", "udp"),
    ] {
        assert!(with(name, value).is_ok(), "{name}");
    }
    let file = Layers::new().file_text(Path::new("t.toml"), "max_scams = 3").unwrap_err().to_string();
    assert!(file.contains("did you mean max_scans?"), "{file}");
    let other = Layers::new().file_text(Path::new("t.toml"), "colour = 3").unwrap_err().to_string();
    assert!(!other.contains("did you mean"), "{other}");
}

#[test]
fn localhost_is_an_address() {
    let parse = |text: &str| <SocketAddr as Setting>::parse(text);
    assert_eq!(parse("localhost:8080"), Ok(SocketAddr::from(([127, 0, 0, 1], 8080))));
    assert_eq!(parse("LOCALHOST:0"), Ok(SocketAddr::from(([127, 0, 0, 1], 0))));
    assert_eq!(NativeAddress::parse("localhost:1").unwrap().show(), "127.0.0.1:1");
    assert_eq!(RespAddress::parse("localhost:2").unwrap().show(), "127.0.0.1:2");
    for wrong in ["localhost", "localhost:", "localhost:x", "localhost:65536", "elsewhere:80", ":80", "80"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn protocols_have_ports_of_their_own() {
    let resolve = |text: &str| Layers::new().file_text(Path::new("t.toml"), text).and_then(Layers::resolve);
    // The native protocol moves its default port away from a configured port.
    for (text, native) in [
        ("http = \"127.0.0.1:7070\"", "127.0.0.1:7071"),
        ("http = \"127.0.0.1:7070\"\nresp = \"127.0.0.1:7071\"", "127.0.0.1:7072"),
        ("http = \"127.0.0.1:7070\"\nresp = \"127.0.0.1:7379\"", "127.0.0.1:7071"),
        ("http = \"127.0.0.1:7070\"\nresp = \"127.0.0.2:7071\"", "127.0.0.1:7071"),
        ("http = \"127.0.0.1:0\"\nresp = \"127.0.0.1:0\"", "127.0.0.1:0"),
    ] {
        assert_eq!(resolve(text).unwrap().config.native_address(), Some(native.parse().unwrap()), "{text}");
    }
    for (text, named) in [
        ("http = \"127.0.0.1:7070\"\nresp = \"127.0.0.1:7070\"", "http and resp both have port 7070"),
        ("native = \"127.0.0.1:7070\"", "http and native both have port 7070"),
        ("native = \"127.0.0.1:7379\"\nresp = \"127.0.0.1:7379\"", "native and resp both have port 7379"),
        ("resp = \"0.0.0.0:7070\"\nallow_unprotected = true", "http and resp both have port 7070"),
    ] {
        let error = resolve(text).unwrap_err().to_string();
        assert!(error.contains(named), "{text}: {error}");
    }
}

#[test]
fn spans_are_read_in_several_notations_and_shown_in_one() {
    for (text, shown) in [("90m", "90m"), ("1.5h", "90m"), ("1h30m", "90m"), ("1 day", "1d"), ("PT0.25S", "250ms")] {
        assert_eq!(Span::parse(text).map(|span| span.show()).as_deref(), Ok(shown), "{text}");
    }
    for wrong in ["", "5", "1.5", "-5s", "5s ago", "1 month", "10ns"] {
        assert!(Span::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn an_address_others_reach_needs_permission() {
    let resolve = |text| Layers::new().file_text(Path::new("t.toml"), text).unwrap().resolve();
    assert!(matches!(resolve("http = \"0.0.0.0:7070\""), Err(ConfigError::Unprotected { .. })));
    assert!(resolve("http = \"0.0.0.0:7070\"\nallow_unprotected = true").is_ok());
    assert!(resolve("http = \"[::1]:0\"").is_ok());
}

#[test]
fn values_that_do_not_fit_each_other_are_refused() {
    let resolve = |text| Layers::new().file_text(Path::new("t.toml"), text).unwrap().resolve();
    for text in [
        "max_body_bytes = \"1GiB\"",
        "idle_timeout = \"1s\"",
        "drain_timeout = \"1m\"",
        "max_connections = 0",
        "header_timeout = \"0s\"",
        "segment_bytes = \"4GiB\"",
    ] {
        assert!(matches!(resolve(text), Err(ConfigError::Range { .. })), "{text}");
    }
}

#[test]
fn units_are_read_as_they_are_shown() {
    for bytes in [0, 1, 1000, 1024, 1536, 64 << 20, 1 << 30, 3 << 40] {
        assert_eq!(ByteSize::parse(&ByteSize(bytes).show()), Ok(ByteSize(bytes)));
    }
    for micros in [0, 1, 250, 1000, 1_500_000, 60_000_000, 86_400_000_000] {
        let span = Span(Duration::from_micros(micros));
        assert_eq!(Span::parse(&span.show()), Ok(span));
    }
    assert_eq!(ByteSize::parse("1_000"), Ok(ByteSize(1000)));
    for text in ["", "x", "-1", "1.5MiB", "1MB", "99999999999TiB"] {
        assert!(ByteSize::parse(text).is_err(), "{text}");
    }
    for text in ["", "5", "5 parsecs", "s", "99999999999999d"] {
        assert!(Span::parse(text).is_err(), "{text}");
    }
}

#[test]
fn the_memory_sum_is_the_sum() {
    let parts = Config::default().memory();
    let (sum, parts) = parts.split_last().unwrap();
    assert_eq!(sum.1.0, parts.iter().map(|(_, bytes)| bytes.0).sum::<u64>());
}

#[test]
fn what_the_native_port_needs_must_fit_together() {
    let resolve = |text: &str| Layers::new().file_text(Path::new("t.toml"), text).and_then(Layers::resolve);
    for (text, name) in [
        ("native_certificate = \"a.pem\"", "native_key"),
        ("native_key = \"a.pem\"", "native_certificate"),
        ("native_quic_sockets = 65", "native_quic_sockets"),
        ("native_quic_window = \"64KiB\"", "native_quic_window"),
        ("native_quic_window = \"2GiB\"", "native_quic_window"),
        ("max_handshakes = 0", "max_handshakes"),
        ("resp_threads = 257", "resp_threads"),
        ("native_threads = 257", "native_threads"),
    ] {
        assert!(matches!(resolve(text), Err(ConfigError::Range { name: named, .. }) if named == name), "{text}");
    }
    resolve("native_certificate = \"a.pem\"\nnative_key = \"b.pem\"\nnative_tls = true").unwrap();
    let refused = resolve("native = \"0.0.0.0:7071\"\nnative_tls = true");
    assert!(matches!(refused, Err(ConfigError::Unprotected { knob: "native", .. })), "TLS keeps nobody out");
    let without = resolve("native_quic_sockets = 0").unwrap().config.memory();
    let quic = |parts: &[(String, ByteSize)]| {
        parts.iter().filter(|(what, _)| what.contains("QUIC")).map(|part| part.1.0).sum::<u64>()
    };
    assert_eq!((quic(&without), quic(&DEFAULTS.memory()) > 0), (0, true));
}

#[test]
fn a_profile_is_below_what_is_given_and_above_the_defaults() {
    let layers = Layers::new()
        .file_text(Path::new("t.toml"), "profile = \"throughput\"\nbatch_messages = 100")
        .unwrap()
        .environment([("THALWEG_BATCH_DELAY", "3ms")])
        .unwrap();
    let resolved = layers.resolve().unwrap();
    let config = &resolved.config;
    assert_eq!((config.batch_messages, config.batch_delay), (100, Span(Duration::from_millis(3))));
    assert_eq!((config.batch_bytes, config.batch_when_idle.show()), (ByteSize(256 * 1024), "wait".to_owned()));
    assert_eq!(resolved.source("batch_bytes"), Some(&Source::Profile(Profile::Throughput)));
    assert_eq!(resolved.source("batch_messages"), Some(&Source::File("t.toml".into())));
    assert!(resolved.explain().contains("profile throughput"));
    for profile in Profile::ALL {
        let mut given = ConfigLayer::default();
        given.set("profile", &profile.show()).unwrap();
        let resolved = Layers::new().flags(given).resolve().unwrap();
        assert_eq!(resolved.config.profile, profile);
        assert_eq!(resolved.config == Config { profile, ..Config::default() }, profile == Profile::Balanced);
    }
}

#[test]
fn the_compression_of_tables_reaches_the_engine() {
    let resolve = |text: &str| Layers::new().file_text(Path::new("t.toml"), text).and_then(Layers::resolve);
    assert_eq!(DEFAULTS.engine_options().table_compression, TableCompression::None);
    let resolved = resolve("table_compression = \"lz4\"").unwrap();
    assert_eq!(resolved.config.engine_options().table_compression, TableCompression::Lz4);
    assert!(resolved.explain().lines().any(|line| line.starts_with("table_compression") && line.contains("lz4")));
    let refused = resolve("table_compression = \"zstd\"").unwrap_err().to_string();
    assert!(refused.contains("table_compression") && refused.contains("none or lz4"), "{refused}");
}

#[test]
fn few_open_files_permit_few_connections() {
    let resolved = |limit| Layers::new().resolve().unwrap().within_open_files(limit);
    for (limit, connections) in
        [(None, 4096), (Some(1 << 20), 4096), (Some(8224), 4096), (Some(4096), 2016), (Some(1024), 480)]
    {
        let resolved = resolved(limit);
        assert_eq!(resolved.config.max_connections, connections, "{limit:?}");
        assert_eq!(resolved.warnings().len(), usize::from(connections < 4096), "{limit:?}");
    }
    let few = resolved(Some(1024));
    assert_eq!(few.source("max_connections"), Some(&Source::OpenFiles));
    let text = few.explain();
    assert!(text.contains("warning: max_connections is 480 instead of 4096") && text.contains("1024 files"), "{text}");
    assert_eq!(resolved(Some(10)).config.max_connections, 1);
}
