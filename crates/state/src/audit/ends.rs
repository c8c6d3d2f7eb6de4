//! Audit of leases, and of the index rows through which maintenance finds keys and leases that have ended.
//!
//! Index rows of keys may be stale: a write that does not read the previous value leaves the index rows of that value.
//! Index rows of leases are never stale.

use thalweg_store::View;
use thalweg_types::LeaseId;

use crate::{
    audit::{
        pages::{each_row, is_there},
        report::{FindingKind, Report},
    },
    error::MachineError,
    expiry::rows::{DeadlineSubject, Lease, attached_rows, lease_deadline_row, lease_of_row, lease_row},
    keys::{KeyRange, TAG_ATTACHED, TAG_DEADLINE, TAG_LEASE},
};

pub(crate) fn check(view: &dyn View, report: &mut Report) -> Result<(), MachineError> {
    each_row(view, &KeyRange::with_prefix(&[TAG_LEASE]), |key, _| {
        let Some(id) = lease_of_row(key) else {
            report.add(FindingKind::Undecodable, key, "the key of a lease", "a key of another length");
            return Ok(());
        };
        match report.decoded(key, Lease::in_view(view, id))?.flatten() {
            Some(lease) => check_lease(view, id, &lease, report),
            None => Ok(()),
        }
    })?;
    each_row(view, &KeyRange::with_prefix(&[TAG_DEADLINE]), |key, _| match DeadlineSubject::of_row(key) {
        Some(DeadlineSubject::Lease { deadline, id }) => {
            let lease = report.decoded(key, Lease::in_view(view, id))?.flatten();
            if lease.is_none_or(|lease| lease.deadline != deadline) {
                report.add(FindingKind::Deadline, key, "a lease with this deadline", "none, or another deadline");
            }
            Ok(())
        }
        Some(_) => Ok(()),
        None => {
            report.add(FindingKind::Undecodable, key, "the key of a deadline", "another key");
            Ok(())
        }
    })?;
    let mut last = None;
    each_row(view, &KeyRange::with_prefix(&[TAG_ATTACHED]), |key, _| {
        match DeadlineSubject::of_row(key) {
            Some(DeadlineSubject::Attached { lease, .. }) if last == Some(lease) => {}
            Some(DeadlineSubject::Attached { lease, .. }) => {
                last = Some(lease);
                if !is_there(view, &lease_row(lease))? {
                    report.add(FindingKind::Attachment, key, "the lease that it names", "no row");
                }
            }
            _ => report.add(FindingKind::Undecodable, key, "the key of an attachment", "another key"),
        }
        Ok(())
    })
}

fn check_lease(view: &dyn View, id: LeaseId, lease: &Lease, report: &mut Report) -> Result<(), MachineError> {
    let deadline = lease_deadline_row(lease.deadline, id);
    if !is_there(view, &deadline)? {
        report.add(FindingKind::Deadline, &deadline, "the row of a lease's deadline", "no row");
    }
    let mut keys = 0;
    each_row(view, &attached_rows(id), |_, _| {
        keys += 1;
        Ok(())
    })?;
    report.same(FindingKind::LeaseKeys, &lease_row(id), "as many keys as attachments,", &keys, &lease.keys);
    Ok(())
}
