//! What clients send in paths, queries, headers and bodies, through the functions that read it.
//!
//! Never a panic; what encodes and decodes gives back what it was given; bodies that are taken hold
//! records that can be read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_fuzz::Input;
use thalweg_server::{
    bodies,
    parse::{
        AppendQuery, Key, Media, Params, RecordsQuery, ScanQuery, decode, decode_query, encode, kv_path, name_segment,
        negotiate, pair_range, parse_time, read_freshness, request_media, rfc3339, write_condition,
    },
};
use thalweg_types::{Revision, record::Records};

fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = kv_path(text);
    let _ = name_segment(text);
    let _ = Params::new(Some(text));
    if let Ok(scan) = ScanQuery::parse(Some(text)) {
        let _ = scan.bounds();
    }
    let _ = RecordsQuery::parse(Some(text));
    let _ = Key::parse(Some(text), "key").and_then(|key| key.required("key"));
    let _ = AppendQuery::parse(Some(text));
    let _ = pair_range(Some(text));
    if let Some(time) = parse_time(text) {
        let _ = rfc3339(time);
    }
}

fn raw(data: &[u8]) {
    let _ = decode_query(data);
    let _ = request_media(data);
    if let Ok(bytes) = decode(data) {
        assert_eq!(&*decode(encode(&bytes).as_bytes()).expect("what we encoded"), &*bytes);
    }
    assert_eq!(&*decode(encode(data).as_bytes()).expect("what we encoded"), data);
}

fn headers(input: &mut Input<'_>) {
    let (one, two) = (input.bytes(), input.bytes());
    for (first, second) in [(Some(one), None), (None, Some(two)), (Some(one), Some(two))] {
        let _ = write_condition(first, second);
        let _ = read_freshness(first, second, Revision(input.number()));
    }
    let offers = [Media::Json, Media::Ndjson, Media::Binary, Media::Events];
    let taken = negotiate(Some(one), &offers[..usize::from(input.byte() % 5)]);
    assert!(taken.is_none_or(|taken| offers.contains(&taken)));
}

fn body(media: Media, data: &[u8]) {
    let Ok(batch) = bodies::records(media, data, None) else { return };
    let read: Vec<_> = Records::new(batch.bytes()).collect::<Result<_, _>>().expect("what was taken can be read");
    assert_eq!(read.len(), batch.count() as usize);
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    match input.byte() % 6 {
        0 => text(input.0),
        1 => raw(input.0),
        2 => headers(&mut input),
        3 => body(Media::Json, input.0),
        4 => body(Media::Ndjson, input.0),
        _ => {
            let _ = bodies::commit(input.0);
        }
    }
});
