//! `docs/formats/command.md` and the code agree, and the document alone suffices to build commands and moves that the
//! code decodes.

use std::collections::BTreeMap;

use thalweg_types::{
    codec::{Field, Structure},
    command::{Command, CommitBuilder, Move, MoveTarget, Write, structures},
};

use crate::common::{Document, Grammar, Random, seeds, split};

/// Kind of the wrapper around commands, which the document lists with the commands.
const WRAPPER: &str = "254";

/// Splits the definition of an enum into its variants: the name and the fields of each code.
fn variants(definition: &str) -> BTreeMap<String, (String, String)> {
    let variants = split(definition).into_iter().map(|variant| {
        let (code, rest) = variant.split_once(' ').expect("a code and a name");
        let (name, fields) = rest.split_once(" (").unwrap_or((rest, ")"));
        (code.to_owned(), (name.to_owned(), fields.strip_suffix(')').expect("a parenthesis closes").to_owned()))
    });
    variants.collect()
}

/// Codes, names and layouts of the table with this heading.
fn documented(heading: &str) -> BTreeMap<String, (String, String)> {
    let rows = Document::read("command.md").rows(heading);
    let count = rows.len();
    let by_code: BTreeMap<_, _> =
        rows.into_iter().map(|row| (row[0].clone(), (row[1].clone(), row[2].clone()))).collect();
    assert_eq!(by_code.len(), count, "a code is there twice");
    by_code
}

fn commands() -> BTreeMap<String, (String, String)> {
    let mut commands = documented("| kind | command | layout |");
    commands.remove(WRAPPER).expect("the wrapper is documented");
    commands
}

fn moves() -> BTreeMap<String, (String, String)> {
    documented("| target | move | layout |")
}

#[test]
fn every_command_is_documented_and_the_reverse() {
    assert_eq!(commands(), variants(&Command::definition()));
}

#[test]
fn every_move_is_documented_and_the_reverse() {
    assert_eq!(moves(), variants(&MoveTarget::definition()));
}

#[test]
fn every_structure_is_documented_and_the_reverse() {
    let code: BTreeMap<_, _> = structures().into_iter().map(|(name, layout)| (name.to_owned(), layout)).collect();
    assert_eq!(Document::read("command.md").structures(), code);
}

/// The code decodes commands built from the document's layouts, and encodes them to the same bytes again.
#[test]
fn commands_made_of_the_document_come_back_byte_for_byte() {
    let grammar = Grammar::of(&Document::read("command.md"));
    for seed in seeds(200) {
        for (kind, (name, layout)) in commands() {
            let kind: u8 = kind.parse().unwrap();
            let mut random = Random::new(seed ^ (u64::from(kind) << 32));
            let mut bytes = vec![kind];
            grammar.put_fields(&layout, &mut bytes, &mut random);
            let command =
                Command::decode(&bytes).unwrap_or_else(|error| panic!("seed {seed}, {name}: {error}: {bytes:x?}"));
            let mut back = Vec::new();
            command.put(&mut back).unwrap();
            assert_eq!(back, bytes, "seed {seed}, {name}");
            match command {
                Command::Commit(commit) => {
                    assert!(commit.conditions().all(|condition| condition.is_ok()), "seed {seed}: {bytes:x?}");
                    assert!(commit.writes().unwrap().all(|write| write.is_ok()), "seed {seed}: {bytes:x?}");
                }
                Command::Transaction(transaction) => {
                    transaction.branches().unwrap_or_else(|error| panic!("seed {seed}: {error}: {bytes:x?}"));
                }
                _ => {}
            }
        }
    }
}

/// The builder of commits, which clients use, encodes the documented bytes of puts, deletes, touches and conditions.
#[test]
fn commits_made_of_the_document_are_what_the_builder_encodes() {
    let grammar = Grammar::of(&Document::read("command.md"));
    let (_, layout) = &commands()["1"];
    let mut rebuilt = 0;
    for seed in seeds(2000) {
        let mut bytes = vec![1];
        grammar.put_fields(layout, &mut bytes, &mut Random::new(seed));
        let Ok(Command::Commit(commit)) = Command::decode(&bytes) else { panic!("seed {seed}: no commit: {bytes:x?}") };
        let mut builder = CommitBuilder::new();
        for condition in commit.conditions().map(Result::unwrap) {
            builder.expect(condition.keyspace, condition.key, condition.expect).unwrap();
        }
        let writes = commit.writes().unwrap().map(Result::unwrap);
        let is_known = writes.map(|write| {
            match write {
                Write::Put { keyspace, key, value, .. } => builder.put(keyspace, key, value),
                Write::Delete { keyspace, key } => builder.delete(keyspace, key),
                Write::PutUntil { keyspace, key, value, deadline, lease, .. } => {
                    builder.put_until(keyspace, key, value, deadline, lease)
                }
                Write::Touch { keyspace, key, deadline } => builder.touch(keyspace, key, deadline),
                // Batches and settlements are built from owned values, which the document does not describe.
                Write::Append { .. } | Write::Settle(_) => return false,
                other => panic!("seed {seed}: {other:?} in a commit"),
            }
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            true
        });
        // The builder adds a condition to a commit that reads and has none.
        if !is_known.fold(true, |all, known| all & known) || commit.condition_count() == 0 {
            continue;
        }
        let mut back = Vec::new();
        builder.encode(&mut back);
        assert_eq!(back, bytes, "seed {seed}");
        rebuilt += 1;
    }
    assert!(rebuilt > 0, "no commit was rebuilt");
}

/// The code decodes moves built from the document's layouts, and encodes them to the same bytes again.
#[test]
fn moves_made_of_the_document_come_back_byte_for_byte() {
    let grammar = Grammar::of(&Document::read("command.md"));
    for seed in seeds(40) {
        for (target, (name, layout)) in moves() {
            let mut random = Random::new(seed);
            let mut bytes: Vec<u8> = (0..20).map(|_| random.below(256) as u8).collect();
            bytes.push(target.parse().unwrap());
            let layout = layout.replace("floor history floor", "revision u64, index u64");
            grammar.put_fields(&layout, &mut bytes, &mut random);
            let bytes_at = bytes.len();
            bytes.extend_from_slice(b"moved");
            let moved = Move::decode(&bytes).unwrap_or_else(|error| panic!("seed {seed}, {name}: {error}: {bytes:x?}"));
            assert_eq!((moved.bytes, moved.bytes_at), (&b"moved"[..], bytes_at));
            let mut back = Vec::new();
            Move::encode(&mut back, &moved.from, &moved.target, moved.bytes);
            assert_eq!(back, bytes, "seed {seed}, {name}");
        }
    }
}
