//! A Redis client's bytes, cut anywhere.
//!
//! Never a panic; the same requests, and the same error, however the bytes are cut; no memory for what was only announced;
//! and a request, written as an array of bulk strings, is the same request again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_redis::wire::{Input, Protocol, READ_BYTES, Trust, Writer};

type Requests = Vec<Vec<Vec<u8>>>;

fn parse<'a>(pieces: impl Iterator<Item = &'a [u8]>, trust: Trust) -> (Requests, Option<String>) {
    let (mut input, mut requests, mut fed) = (Input::new(), Vec::new(), 0);
    for piece in pieces {
        input.feed(piece);
        fed += piece.len();
        loop {
            match input.next(trust) {
                Ok(None) => break,
                Ok(Some(request)) => {
                    assert!(request.len() > 0);
                    requests.push(request.iter().map(<[u8]>::to_vec).collect());
                }
                Err(error) => return (requests, Some(error.to_string())),
            }
        }
        assert!(input.buffer().capacity() <= 4 * fed + 2 * READ_BYTES, "memory for what was only announced");
    }
    (requests, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((first, data)) = data.split_first() else { return };
    // Longer lines are refused or taken by how much of them has come.
    let data = &data[..data.len().min(32 * 1024)];
    let trust = if first & 1 == 0 { Trust::Known } else { Trust::Unknown };
    let size = 1 + usize::from(first >> 1);
    let (requests, error) = parse(std::iter::once(data), trust);
    assert_eq!(parse(data.chunks(size), trust), (requests.clone(), error));

    let mut again = Vec::new();
    let mut writer = Writer::new(&mut again, Protocol::Resp2);
    for request in &requests {
        writer.array(request.len());
        request.iter().for_each(|argument| writer.bulk(argument));
    }
    let (same, error) = parse(std::iter::once(&again[..]), Trust::Known);
    assert!(same == requests && error.is_none());
});
