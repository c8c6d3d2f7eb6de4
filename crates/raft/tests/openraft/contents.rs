//! The complete content of a space that clients can read, for comparison.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

use thalweg_log::Log;
use thalweg_state::{
    keyspaces::{ScanRange, StoredRef},
    machine::Machine,
    membership::AppliedMembership,
    streams::LiveStream,
};
use thalweg_types::{BlobRef, Offset, Revision, SpaceTime, record::Records};

type Pairs = BTreeMap<Vec<u8>, (Revision, Vec<u8>)>;

/// One record of a stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    pub offset: Offset,
    pub time: SpaceTime,
    pub key: Option<Vec<u8>>,
    pub payload: Vec<u8>,
}

/// The content of a space, with values but without their positions, which differ between nodes.
#[derive(Debug, PartialEq, Eq)]
pub struct Contents {
    pub keyspaces: BTreeMap<Arc<str>, Pairs>,
    pub streams: Vec<(LiveStream, Vec<Found>)>,
    pub membership: Option<AppliedMembership>,
    pub revision: Revision,
    pub time: SpaceTime,
}

impl Contents {
    pub fn read(machine: &Machine, log: &Log) -> Self {
        let bytes = |blob: &BlobRef| log.read_blob(blob).unwrap().to_vec();
        let pairs = |id| {
            let mut pairs = Pairs::new();
            let mut visit = |item: thalweg_state::keyspaces::Item<'_>| {
                let value = match item.value.expect("values were asked for") {
                    StoredRef::Inline(value) => value.to_vec(),
                    StoredRef::Blob(blob) => bytes(&blob),
                    StoredRef::Collection(_) => panic!("no Redis client was here"),
                };
                pairs.insert(item.key.to_vec(), (item.revision, value));
                ControlFlow::Continue(())
            };
            machine.read_view().scan(id, &ScanRange::default(), &mut visit).unwrap();
            pairs
        };
        let applied = machine.applied();
        Self {
            keyspaces: machine.keyspaces().into_iter().map(|(id, row)| (row.name, pairs(id))).collect(),
            streams: machine.streams().into_iter().map(|info| (info.clone(), records(machine, &info, bytes))).collect(),
            membership: machine.membership().unwrap(),
            revision: applied.revision,
            time: applied.time,
        }
    }
}

fn records(machine: &Machine, info: &LiveStream, bytes: impl Fn(&BlobRef) -> Vec<u8>) -> Vec<Found> {
    let mut found = Vec::new();
    let mut from = info.start;
    while from < info.next {
        let batches = machine.batches_from(info.id, from, 16, u64::MAX).unwrap().batches;
        for batch in batches {
            for (record, number) in Records::new(&bytes(&batch.blob)).zip(0..) {
                let record = record.unwrap();
                let offset = batch.first.plus(number);
                if offset >= from {
                    let key = record.key.map(<[u8]>::to_vec);
                    found.push(Found { offset, time: batch.time, key, payload: record.payload.to_vec() });
                }
            }
            from = batch.first.plus(batch.count.into());
        }
    }
    found
}
