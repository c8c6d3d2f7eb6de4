use std::collections::BTreeSet;

use thalweg_types::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

use crate::{Reply, errors::REPLY_TOO_LARGE, execute, model::Model};

fn run(model: &mut Model, args: &[&[u8]]) -> Reply {
    execute(model, args).unwrap()
}

fn bulks(reply: Reply) -> Vec<Vec<u8>> {
    let Reply::Array(items) = reply else { panic!("{reply:?}") };
    let bulk = |item| match item {
        Reply::Bulk(bytes) => bytes.to_vec(),
        other => panic!("{other:?}"),
    };
    items.into_iter().map(bulk).collect()
}

/// Reads all fields of a hash page by page. Also returns the number of pages.
fn scan(model: &mut Model, key: &[u8], count: &[u8]) -> (Vec<Vec<u8>>, usize) {
    let (mut position, mut fields, mut pages) = (Vec::new(), Vec::new(), 0);
    loop {
        let Reply::Array(mut page) = run(model, &[b"hscan", key, &position.clone(), b"count", count]) else {
            panic!("no page")
        };
        let items = bulks(page.pop().unwrap());
        fields.extend(items.chunks(2).map(|pair| pair[0].clone()));
        position = bulks(Reply::Array(page)).pop().unwrap();
        pages += 1;
        if position.is_empty() {
            return (fields, pages);
        }
    }
}

#[test]
fn pages_have_each_field_once_and_an_empty_one_ends_none() {
    let mut model = Model::default();
    let names: Vec<Vec<u8>> = (0..100_u8).map(|at| if at == 0 { Vec::new() } else { vec![at] }).collect();
    for name in &names {
        run(&mut model, &[b"hset", b"h", name, b"v"]);
    }
    for count in [1, 2, 7, 99, 100, 1000] {
        let (fields, pages) = scan(&mut model, b"h", count.to_string().as_bytes());
        assert_eq!(fields, names);
        // The first page has one more field, because a page must not end after the empty name.
        assert!(pages <= 100_usize.div_ceil(count) && pages >= 100 / (count + 1), "{pages} of {count}");
    }
}

#[test]
fn pages_and_replies_have_a_bound_in_bytes() {
    let mut model = Model::default();
    let largest = vec![b'v'; MAX_VALUE_BYTES];
    for at in 0..9_u8 {
        assert_eq!(run(&mut model, &[b"hset", b"h", &[at], &largest]), Reply::Integer(1));
    }
    assert_eq!(run(&mut model, &[b"hgetall", b"h"]), Reply::error(REPLY_TOO_LARGE));
    assert_eq!(run(&mut model, &[b"hvals", b"h"]), Reply::error(REPLY_TOO_LARGE));
    assert_eq!(run(&mut model, &[b"hrandfield", b"h", b"9", b"withvalues"]), Reply::error(REPLY_TOO_LARGE));
    assert_eq!(run(&mut model, &[b"hrandfield", b"h", b"-999999999"]), Reply::error(REPLY_TOO_LARGE));
    assert!(matches!(run(&mut model, &[b"copy", b"h", b"i"]), Reply::Error(text) if text.contains("too large")));
    let (fields, pages) = scan(&mut model, b"h", b"100");
    assert_eq!((fields.len(), pages), (9, 2));
    let larger = vec![b'v'; MAX_VALUE_BYTES + 1];
    assert!(matches!(run(&mut model, &[b"hset", b"h", b"f", b"v", b"g", &larger]), Reply::Error(_)));
    assert!(matches!(run(&mut model, &[b"hget", b"h", &larger[..MAX_KEY_BYTES + 1]]), Reply::Error(_)));
    assert_eq!(run(&mut model, &[b"hlen", b"h"]), Reply::Integer(9));
}

#[test]
fn each_field_is_chosen_as_often_and_none_twice_unless_asked_for() {
    let mut model = Model::default();
    for at in b'a'..=b'j' {
        run(&mut model, &[b"hset", b"h", &[at], b"v"]);
    }
    let mut times = [0_usize; 10];
    for now in 0..3000 {
        model.now = now;
        let chosen = bulks(run(&mut model, &[b"hrandfield", b"h", b"3"]));
        assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), 3);
        chosen.iter().for_each(|field| times[usize::from(field[0] - b'a')] += 1);
    }
    assert!(times.iter().all(|times| (750..1050).contains(times)), "900 each, give or take 5 sigma: {times:?}");
    let repeated = bulks(run(&mut model, &[b"hrandfield", b"h", b"-50"]));
    assert!(repeated.len() == 50 && !repeated.is_sorted());
    assert_eq!(bulks(run(&mut model, &[b"hrandfield", b"h", b"50"])).len(), 10);
}

#[test]
fn a_copy_has_fields_of_its_own() {
    let mut model = Model::default();
    run(&mut model, &[b"hset", b"h", b"f", b"1", b"g", b"2"]);
    assert_eq!(run(&mut model, &[b"copy", b"h", b"i"]), Reply::Integer(1));
    run(&mut model, &[b"hset", b"h", b"f", b"3"]);
    run(&mut model, &[b"hdel", b"i", b"g"]);
    assert_eq!(run(&mut model, &[b"hget", b"i", b"f"]), Reply::bulk(b"1"));
    assert_eq!(run(&mut model, &[b"hget", b"h", b"g"]), Reply::bulk(b"2"));
    assert_eq!(run(&mut model, &[b"hdel", b"i", b"f", b"f"]), Reply::Integer(1));
    assert_eq!(run(&mut model, &[b"exists", b"i"]), Reply::Integer(0));
}
