//! Names and layouts of the structures that commands consist of, for the comparison with `docs/formats/command.md`.

use crate::{
    codec::Structure,
    command::{
        append::ProducerStamp,
        condition::{Condition, Expect},
        groups::{GroupConfig, GroupOrder},
        stream_config::StreamConfig,
        write::{OPERATIONS, WRITES},
    },
};

/// Returns the name and the layout of every structure that commands consist of, as pairs `(name, definition)`.
#[must_use]
pub fn structures() -> Vec<(&'static str, String)> {
    macro_rules! list {
        ($($name:ident)*) => { vec![$(($name::NAME, $name::definition()),)*] };
    }
    let mut structures = list!(Condition Expect GroupConfig GroupOrder ProducerStamp StreamConfig);
    let by_hand = [
        ("operation", OPERATIONS),
        ("settlement", "attempt u64, runs [offset run]"),
        ("watch", "key bytes, version u64"),
        ("write", WRITES),
    ];
    structures.extend(by_hand.map(|(name, definition)| (name, definition.to_owned())));
    structures
}
