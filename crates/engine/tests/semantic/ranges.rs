//! Ranges by the iterator and by pages, beside the visitor, which shows the same pairs.

use std::{ops::ControlFlow, time::Duration};

use thalweg_engine::{
    Entry, Keyspace, KeyspaceIter, Order, ScanRange, Values,
    types::{
        Durability,
        budget::{Budget, BudgetSpent},
        command::{CommitBuilder, Deadline},
    },
};

use crate::{
    common::{Rng, random_bound, seed},
    support::Node,
};

type Pairs = Vec<(Vec<u8>, Entry)>;

const KEYS: u64 = 3000;

fn key(number: u64) -> Vec<u8> {
    // Keys of several lengths and under several prefixes.
    format!("{}/{:04}{}", number % 7, number, "-".repeat(number as usize % 40)).into_bytes()
}

/// Values on both sides of the limits for values in the row and for values that share memory.
fn value(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(40) {
        0 => 1000 + rng.below(50),
        1 => 5000,
        2 => 0,
        _ => rng.below(120),
    };
    rng.bytes(len as usize)
}

/// Writes about as many keys as asked for, and among them some that have ended or were deleted.
fn write(node: &Node, keyspace: &Keyspace, rng: &mut Rng, keys: u64) {
    for _ in 0..keys.div_ceil(100) {
        let mut commit = CommitBuilder::new();
        for _ in 0..100 {
            let key = key(rng.below(KEYS));
            match rng.below(10) {
                0 => commit.delete(keyspace.id(), &key).unwrap(),
                _ => commit.put(keyspace.id(), &key, &value(rng)).unwrap(),
            };
        }
        node.db().with_durability(Durability::Os).commit(&commit).unwrap();
        for seconds in [1, 1000] {
            keyspace.put_for(&key(rng.below(KEYS)), b"with an end", Duration::from_secs(seconds)).unwrap();
        }
    }
}

fn random_range(rng: &mut Rng) -> ScanRange {
    let prefix = if rng.below(3) == 0 { format!("{}/", rng.below(8)).into_bytes() } else { Vec::new() };
    let (one, other) = (key(rng.below(KEYS)), key(rng.below(KEYS)));
    let (low, high) = if one < other { (one, other) } else { (other, one) };
    ScanRange {
        prefix,
        start: random_bound(rng, low),
        end: random_bound(rng, high),
        order: if rng.below(2) == 0 { Order::Ascending } else { Order::Descending },
        // Limits at and beside the sizes of the iterator's pages.
        limit: [None, Some(rng.below(200)), Some([0, 1, 127, 128, 129, 640, 641][rng.below(7) as usize])]
            [rng.below(3) as usize],
        values: if rng.below(5) == 0 { Values::Omit } else { Values::Include },
    }
}

fn visited(keyspace: &Keyspace, range: &ScanRange) -> Pairs {
    let mut pairs = Pairs::new();
    keyspace
        .scan(range, &mut |item| {
            let value = item.value.to_vec().into();
            pairs.push((item.key.to_vec(), Entry { value, revision: item.revision, expiry: item.expiry }));
            ControlFlow::Continue(())
        })
        .unwrap();
    pairs
}

fn take(iter: &mut KeyspaceIter, pairs: &mut Pairs, most: usize) {
    pairs.extend(iter.take(most).map(|pair| pair.map(|(key, entry)| (key.to_vec(), entry)).unwrap()));
}

fn the_iterator_and_pages_have_what_the_visitor_sees(node: &mut Node) {
    let mut rng = Rng(seed(21));
    let keyspace = node.db().keyspace("k").unwrap().with_durability(Durability::Os);
    write(node, &keyspace, &mut rng, KEYS * 2);
    keyspace.delete_prefix(b"3/").unwrap();
    node.pass(Duration::from_secs(10));
    for round in 0..60 {
        let range = random_range(&mut rng);
        let expected = visited(&keyspace, &range);
        let (mut iter, mut paged) = (keyspace.iter(range.clone()), keyspace.iter(range.clone()));

        let mut found = Pairs::new();
        let most = rng.below(300) as usize;
        take(&mut iter, &mut found, most);
        // What is written from here on is after both views.
        write(node, &keyspace, &mut rng, 100);
        let copy = iter.clone();
        take(&mut iter, &mut found, usize::MAX);
        assert_eq!(found, expected, "round {round}: {range:?}");
        assert!(iter.next().is_none() && iter.next_page(9, 9).unwrap().is_empty());
        assert_eq!(copy.count(), expected.len().saturating_sub(most), "round {round}: {range:?}");

        let mut found = Pairs::new();
        loop {
            let (items, bytes) = (1 + rng.below(400) as usize, 1 + rng.below(20_000) as usize);
            let page = paged.next_page(items, bytes).unwrap();
            let sizes: Vec<_> = page.iter().map(|(key, entry)| key.len() + entry.value.len()).collect();
            assert!(page.len() <= items && sizes.iter().rev().skip(1).sum::<usize>() < bytes);
            if page.is_empty() {
                break;
            }
            found.extend(page.into_iter().map(|(key, entry)| (key.to_vec(), entry)));
        }
        assert_eq!(found, expected, "round {round} in pages: {range:?}");
    }
}

/// Takes pairs by lending, which copies nothing where the backend has cursors.
fn lend(iter: &mut KeyspaceIter, pairs: &mut Pairs, most: usize) {
    for _ in 0..most {
        let Some(item) = iter.next_pair().transpose().unwrap() else { return };
        let value = item.value.to_vec().into();
        pairs.push((item.key.to_vec(), Entry { value, revision: item.revision, expiry: item.expiry }));
    }
}

/// Pairs are lent from a cursor and read in pages, in turns, while writes, flushes and compactions go on.
fn lent_pairs_are_those_of_the_iterator(node: &mut Node) {
    let mut rng = Rng(seed(22));
    let keyspace = node.db().keyspace("k").unwrap().with_durability(Durability::Os);
    let lease = node.db().leases().grant(Duration::from_secs(5)).unwrap().id;
    for round in 0..80 {
        write(node, &keyspace, &mut rng, if round == 0 { KEYS } else { 100 });
        match round % 8 {
            1 => drop(keyspace.delete_prefix(format!("{}/", rng.below(7)).as_bytes()).unwrap()),
            3 => node.db().flush().unwrap(),
            5 => node.db().compact().unwrap(),
            7 => node.pass(Duration::from_secs(1)),
            _ => {
                let mut commit = CommitBuilder::new();
                commit
                    .put_until(keyspace.id(), &key(rng.below(KEYS)), b"leased", Deadline::Default, Some(lease))
                    .unwrap();
                // Fails once the lease has ended.
                let _ = node.db().commit(&commit);
            }
        }
        let range = random_range(&mut rng);
        let owned: Pairs =
            keyspace.iter(range.clone()).map(|pair| pair.map(|(key, entry)| (key.to_vec(), entry)).unwrap()).collect();
        let (mut lending, mut mixed) = (keyspace.iter(range.clone()), keyspace.iter(range.clone()));
        // What is written from here on is after both views.
        write(node, &keyspace, &mut rng, 100);
        let mut found = Pairs::new();
        lend(&mut lending, &mut found, rng.below(300) as usize);
        let mut copy = lending.clone();
        let mut of_copy = found.clone();
        lend(&mut lending, &mut found, usize::MAX);
        assert_eq!(found, owned, "round {round}: {range:?}");
        assert!(lending.next_pair().is_none() && lending.next().is_none());
        lend(&mut copy, &mut of_copy, usize::MAX);
        assert_eq!(of_copy, owned, "a copy in round {round}: {range:?}");
        let mut found = Pairs::new();
        loop {
            let before = found.len();
            lend(&mut mixed, &mut found, rng.below(200) as usize);
            take(&mut mixed, &mut found, rng.below(3) as usize * 70);
            let page = mixed.next_page(1 + rng.below(50) as usize, 5000).unwrap();
            if mixed.next_value_bytes().is_ok() && page.is_empty() && found.len() == before {
                break;
            }
            found.extend(page.into_iter().map(|(key, entry)| (key.to_vec(), entry)));
        }
        // A page does not have the pairs that the iterator has read ahead, so their order may differ.
        found.sort_by(|left, right| left.0.cmp(&right.0));
        let mut expected = owned;
        expected.sort_by(|left, right| left.0.cmp(&right.0));
        assert_eq!(found, expected, "in turns in round {round}: {range:?}");
    }
}

/// A page that the budget of its thread cut short is no end of the range.
fn a_spent_budget_is_not_the_end_of_a_range(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    let mut commit = CommitBuilder::new();
    (0..500_u64).for_each(|number| _ = commit.put(keyspace.id(), &number.to_be_bytes(), b"v").unwrap());
    node.db().commit(&commit).unwrap();
    let mut iter = keyspace.iter(ScanRange::default());
    let spent = Budget::waiting(100).perform(|| iter.next_page(1000, usize::MAX).map(drop));
    assert_eq!(spent, Err(BudgetSpent::Steps));
    assert!(iter.next().is_some(), "it goes on");
    let mut lending = keyspace.iter(ScanRange::default());
    let spent = Budget::waiting(100).perform(|| while lending.next_pair().is_some() {});
    assert_eq!(spent, Err(BudgetSpent::Steps));
    assert!(lending.next_pair().is_some(), "it goes on");
    let all = Budget::waiting(1_000_000).perform(|| keyspace.iter(ScanRange::default()).count());
    assert_eq!(all, Ok(500));
}

on_every_backend!(
    the_iterator_and_pages_have_what_the_visitor_sees,
    lent_pairs_are_those_of_the_iterator,
    a_spent_budget_is_not_the_end_of_a_range,
);
