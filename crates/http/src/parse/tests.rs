use thalweg_types::{Offset, Revision, SpaceTime, command::Expect};

use super::*;

/// A small pseudo-random generator. Failing tests print the seed.
struct Dice(u64);
impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn bytes(&mut self, max: u64) -> Vec<u8> {
        (0..self.next() % max).map(|_| self.next() as u8).collect()
    }
}

#[test]
fn any_bytes_survive_encoding_in_paths_queries_and_cursors() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    let mut dice = Dice(seed);
    for _ in 0..5000 {
        let bytes = dice.bytes(64);
        let encoded = encode(&bytes);
        assert_eq!(decode(encoded.as_bytes()).unwrap(), bytes, "seed {seed}");
        assert_eq!(decode_query(encoded.as_bytes()).unwrap(), bytes, "seed {seed}");
        let (name, key) =
            kv_path(&format!("space/{encoded}")).map(|(n, k)| (n.into_owned(), k.unwrap().into_owned())).unwrap();
        assert_eq!((name.as_str(), key), ("space", bytes), "seed {seed}");
    }
}

#[test]
fn random_text_is_decoded_or_refused_and_never_panics() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    let mut dice = Dice(seed);
    let alphabet = b"%%%0123456789aAfFgG&&==++?#/.-:TZ\"*,;qW \xc3\xa9\xff";
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..dice.next() % 40).map(|_| alphabet[dice.next() as usize % alphabet.len()]).collect();
        if let Ok(decoded) = decode(&bytes) {
            assert_eq!(decode(encode(&decoded).as_bytes()).unwrap(), decoded, "seed {seed}");
        }
        let text = String::from_utf8_lossy(&bytes);
        let _ = (kv_path(&text), ScanQuery::parse(Some(&text)), RecordsQuery::parse(Some(&text)));
        let _ = (AppendQuery::parse(Some(&text)), pair_range(Some(&text)), parse_time(&text));
        let _ = (write_condition(Some(&bytes), None), negotiate(Some(&bytes), &[Media::Json, Media::Binary]));
        let _ = read_freshness(Some(&bytes), Some(&bytes), Revision(1));
    }
}

#[test]
fn a_slash_in_a_key_may_be_plain_or_escaped() {
    for path in ["a/x/y", "a/x%2Fy", "a/x%2fy"] {
        let (name, key) = kv_path(path).unwrap();
        assert_eq!((&*name, &*key.unwrap()), ("a", b"x/y".as_slice()));
    }
    assert_eq!(kv_path("a").unwrap().1, None);
    assert_eq!(kv_path("a/").unwrap().1.unwrap().len(), 0);
}

#[test]
fn plus_is_itself_in_a_path_and_a_space_in_a_query() {
    assert_eq!(&*decode(b"a+b").unwrap(), b"a+b");
    assert_eq!(&*decode_query(b"a+b").unwrap(), b"a b");
}

#[test]
fn bad_escapes_say_where() {
    for (text, at) in [("%", 0), ("ab%f", 2), ("%zz", 0), ("a%41%4", 4)] {
        assert_eq!(decode(text.as_bytes()), Err(ParseError::BadEscape { at }), "{text}");
    }
}

#[test]
fn scan_queries_are_strict() {
    let query = ScanQuery::parse(Some("prefix=a%00&start=b&end=c&limit=10&reverse&keys_only=true")).unwrap();
    assert_eq!(query.prefix, b"a\0");
    assert_eq!((query.limit, query.reverse, query.keys_only), (Some(10), true, true));
    let refused = |text: &str| ScanQuery::parse(Some(text)).unwrap_err();
    assert!(matches!(refused("limt=1"), ParseError::UnknownParameter { .. }));
    assert!(matches!(refused("limit=1&limit=2"), ParseError::Repeated { name: "limit" }));
    assert!(matches!(refused("limit=-1"), ParseError::BadParameter { name: "limit", .. }));
    assert!(matches!(refused("limit=99999999999999999999"), ParseError::BadParameter { .. }));
    assert!(matches!(refused("reverse=maybe"), ParseError::BadParameter { name: "reverse", .. }));
    assert!(matches!(refused("revision=new"), ParseError::BadParameter { name: "revision", .. }));
    assert!(
        VersionsQuery::parse(Some("limit=0")).is_err() && RevisionQuery::parse(Some("revision=1&limit=1")).is_err()
    );
    let versions = VersionsQuery { before: Some(7), limit: Some(2) };
    assert_eq!(VersionsQuery::parse(Some("before=7&limit=2")), Ok(versions));
}

#[test]
fn record_queries_begin_at_an_offset_or_a_time() {
    let from = |text| RecordsQuery::parse(Some(text)).unwrap().from;
    assert_eq!(from("from=7"), Some(StartPosition::Offset(Offset(7))));
    assert_eq!(from("from=start"), Some(StartPosition::Start));
    assert_eq!(from("from=end"), Some(StartPosition::End));
    assert_eq!(from("since=1000000"), Some(StartPosition::Time(SpaceTime(1_000_000))));
    assert_eq!(from("since=1970-01-01T00%3A00%3A01Z"), Some(StartPosition::Time(SpaceTime(1_000_000))));
    assert!(RecordsQuery::parse(Some("from=1&since=2")).is_err());
    assert!(RecordsQuery::parse(Some("since=yesterday")).is_err());
}

#[test]
fn times_come_back_as_given() {
    for (text, micros) in [
        ("1970-01-01T00:00:00Z", 0),
        ("2000-02-29T12:00:00+02:00", 951_818_400_000_000),
        ("2026-11-20T10:00:00.25Z", 1_795_168_800_250_000),
    ] {
        assert_eq!(parse_time(text), Some(SpaceTime(micros)), "{text}");
        assert_eq!(parse_time(&rfc3339(SpaceTime(micros))), Some(SpaceTime(micros)), "{text}");
    }
    for text in ["", "2026-13-01T00:00:00Z", "2026-02-29T00:00:00Z", "2026-11-20", "1969-12-31T23:59:59Z", "x"] {
        assert_eq!(parse_time(text), None, "{text}");
    }
    let mut dice = Dice(42);
    for _ in 0..2000 {
        let time = SpaceTime(dice.next() % 250_000_000_000_000_000);
        assert_eq!(parse_time(&rfc3339(time)), Some(time));
    }
}

#[test]
fn conditions_of_writes() {
    assert_eq!(write_condition(None, None), Ok(None));
    assert_eq!(write_condition(Some(b"\"17\""), None), Ok(Some(Expect::Revision(Revision(17)))));
    assert_eq!(write_condition(Some(b" * "), None), Ok(Some(Expect::Present)));
    assert_eq!(write_condition(None, Some(b"*")), Ok(Some(Expect::Absent)));
    for (if_match, if_none_match) in [
        (Some(b"17".as_slice()), None),
        (Some(b"W/\"17\""), None),
        (Some(b"\"1\", \"2\""), None),
        (None, Some(b"\"17\"".as_slice())),
        (Some(b"*"), Some(b"*")),
    ] {
        assert!(write_condition(if_match, if_none_match).is_err());
    }
}

#[test]
fn conditions_of_reads() {
    let at = Revision(5);
    assert_eq!(read_freshness(None, None, at), Freshness::Send);
    assert_eq!(read_freshness(None, Some(b"\"5\""), at), Freshness::NotModified);
    assert_eq!(read_freshness(None, Some(b"\"4\", W/\"5\""), at), Freshness::NotModified);
    assert_eq!(read_freshness(None, Some(b"\"4\""), at), Freshness::Send);
    assert_eq!(read_freshness(Some(b"\"4\""), None, at), Freshness::Failed);
    assert_eq!(read_freshness(Some(b"*"), None, at), Freshness::Send);
}

#[test]
fn media_types_are_negotiated() {
    let offers = [Media::Ndjson, Media::Binary, Media::Events];
    let pick = |accept: &str| negotiate(Some(accept.as_bytes()), &offers);
    assert_eq!(negotiate(None, &offers), Some(Media::Ndjson));
    assert_eq!(pick("*/*"), Some(Media::Ndjson));
    assert_eq!(pick("text/event-stream"), Some(Media::Events));
    assert_eq!(pick("application/*;q=0.5, text/event-stream"), Some(Media::Events));
    assert_eq!(pick("application/x-ndjson;q=0, */*"), Some(Media::Binary));
    assert_eq!(pick("application/octet-stream, application/x-ndjson;q=0.9"), Some(Media::Binary));
    assert_eq!(pick("image/png"), None);
    assert_eq!(request_media(b"Application/JSON; charset=utf-8"), Some(Media::Json));
    assert_eq!(request_media(b"application/x-www-form-urlencoded"), None);
}
