//! Audit of the values of keys: their pointers into the log, their exact counts, and the index rows of their deadlines
//! and leases.

use std::collections::{BTreeMap, HashSet};

use thalweg_redis::CollectionId;
use thalweg_store::View;
use thalweg_types::{KeyspaceId, Revision};

use crate::{
    audit::{
        pages::{each_row, is_there},
        report::{FindingKind, Report},
        segments::Segments,
        visible_names::Names,
    },
    clears::table::Prefixes,
    error::MachineError,
    expiry::rows::{Expiry, attached_prefix, deadline_prefix, lease_row},
    keys::{self, DATA_PREFIX_LEN, KeyRange, TAG_DATA},
    keyspaces::{
        catalog::KeyspaceRow,
        counts::Counts,
        values::{Decoded, decode_value},
    },
    segments::liveness::BlobKind,
};

/// Redis collections to which a key refers, by keyspace and id.
pub(crate) type ReferencedCollections = HashSet<(KeyspaceId, CollectionId)>;

pub(crate) fn check(
    view: &dyn View,
    names: &Names,
    segments: &mut Segments,
    report: &mut Report,
) -> Result<ReferencedCollections, MachineError> {
    let (mut counts, mut held) = (BTreeMap::<KeyspaceId, Counts>::new(), ReferencedCollections::new());
    each_row(view, &KeyRange::with_prefix(&[TAG_DATA]), |full, row| {
        let head = full.split_at_checked(DATA_PREFIX_LEN);
        let id = head.and_then(|(head, _)| keys::id_of(head)).map(KeyspaceId);
        let Some((id, keyspace)) = id.and_then(|id| Some((id, names.keyspaces.row(id)?))) else {
            report.add(FindingKind::Stray, full, "a keyspace that exists", "none");
            return Ok(());
        };
        let Some(value) = report.decoded(full, decode_value(full, row))? else { return Ok(()) };
        if let Some(blob) = value.value.blob() {
            segments.add(BlobKind::Value, &blob);
        }
        if value.revision > names.revision {
            report.add(FindingKind::FutureRevision, full, names.revision.0, value.revision.0);
        }
        let key = &full[DATA_PREFIX_LEN..];
        if keyspace.config.exact_counts && is_counted(names, id, value.revision) {
            add(counts.entry(id).or_default(), key, &value);
        }
        if let Some(collection) = value.value.collection() {
            check_collection(names, keyspace, full, collection, report);
            if !held.insert((id, collection)) {
                report.add(FindingKind::Collection, full, "a collection of one key", "another key refers to it too");
            }
        }
        if value.expiry != Expiry::NEVER {
            check_ends(view, id, key, &value.expiry, report)?;
        }
        Ok(())
    })?;
    check_counts(view, names, &counts, report)?;
    Ok(held)
}

fn is_counted(names: &Names, id: KeyspaceId, revision: Revision) -> bool {
    let emptied = names.clears.of(id).and_then(Prefixes::emptied_at);
    emptied.is_none_or(|emptied| revision >= emptied)
}

fn add(counts: &mut Counts, key: &[u8], value: &Decoded<'_>) {
    counts.keys += 1;
    counts.bytes += (key.len() + value.value.value_len()) as u64;
    counts.collections += u64::from(value.value.collection().is_some());
}

fn check_collection(names: &Names, keyspace: &KeyspaceRow, full: &[u8], collection: CollectionId, report: &mut Report) {
    if collection >= names.meta.next_collection {
        let next = format_args!("an id below {}", names.meta.next_collection.0);
        report.add(FindingKind::Collection, full, next, collection.0);
    }
    if !keyspace.config.exact_counts {
        report.add(FindingKind::Collection, full, "bytes, as the keyspace does not count exactly", "a collection");
    }
}

/// Checks that the index row of a value's deadline, that of its attachment to a lease, and the lease itself exist.
fn check_ends(
    view: &dyn View,
    id: KeyspaceId,
    key: &[u8],
    expiry: &Expiry,
    report: &mut Report,
) -> Result<(), MachineError> {
    if let Some(deadline) = expiry.deadline {
        let row = [&deadline_prefix(deadline, id), key].concat();
        if !is_there(view, &row)? {
            report.add(FindingKind::Deadline, &row, "the row of a value's deadline", "no row");
        }
    }
    if let Some(lease) = expiry.lease {
        let row = [&attached_prefix(lease, id), key].concat();
        if !is_there(view, &row)? {
            report.add(FindingKind::Attachment, &row, "the row of a value that ends with a lease", "no row");
        }
        if !is_there(view, &lease_row(lease))? {
            report.add(FindingKind::Attachment, &lease_row(lease), "the lease that a value ends with", "no row");
        }
    }
    Ok(())
}

fn check_counts(
    view: &dyn View,
    names: &Names,
    counts: &BTreeMap<KeyspaceId, Counts>,
    report: &mut Report,
) -> Result<(), MachineError> {
    // The counts of a dropped keyspace are never read.
    for (id, _) in names.keyspaces.list().iter().filter(|(_, row)| row.config.exact_counts) {
        let key = keys::counts_row(*id);
        let Some(stored) = report.decoded(&key, Counts::in_view(view, *id))? else { continue };
        let counted = counts.get(id).copied().unwrap_or_default();
        report.same(FindingKind::Counts, &key, "the counts of its rows,", &counted, &stored);
    }
    Ok(())
}
