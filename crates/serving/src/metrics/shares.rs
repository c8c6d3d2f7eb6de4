//! Metrics of the amounts that single clients hold of the server's bounded resources, such as connections and memory.

use std::{fmt, sync::Arc};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::encode::{counter, gauge, gauges};
use crate::{
    admission::{Admission, Resource},
    bulk::BulkCounters,
    half_open::ConnectionSlots,
    held_log::HeldLog,
};

/// Collector of metrics: the amounts that single clients hold of the server's bounded resources, such as connections
/// and memory. The total amounts and the bounds are among the metrics of HTTP.
#[derive(Debug)]
pub struct Shares {
    /// Bounds of the server, and the accounts of its clients.
    pub admission: Arc<Admission>,
    /// Slots of connections that have not proved themselves yet, for example by authentication.
    pub slots: Arc<ConnectionSlots>,
    /// Measurement of the log that is kept because snapshots are open.
    pub held_log: Arc<HeldLog>,
    /// Counters of bulk output (deliveries and other long output) of all runtimes of the server.
    pub bulk: Arc<BulkCounters>,
}

impl Collector for Shares {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (Self { admission, slots, held_log, bulk }, to) = (self, &mut encoder);
        gauge(to, "client_addresses", "Client addresses that hold anything", admission.address_count() as u64)?;
        let help = "Largest amount of each bound that one client address holds";
        let held = |resource| admission.largest_holder(resource).map_or(0, |(_, held)| held);
        let largest = Resource::ALL.map(|resource| ([("bound", resource.name())], held(resource)));
        gauges(to, "client_largest_share", help, largest)?;
        let help =
            "Amount that the address which holds most of a bound holds, while only the reserve of the bound is free";
        let holders = Resource::ALL.into_iter().filter(|resource| admission.bound(*resource).is_short());
        let holders = holders.filter_map(|resource| {
            let (address, held) = admission.largest_holder(resource)?;
            Some(([("bound", resource.name().to_owned()), ("address", address.to_string())], held))
        });
        gauges(to, "client_largest_holder", help, holders)?;
        let half_open = "Connections without a finished handshake or authentication";
        gauge(to, "half_open", half_open, slots.half_open.used() as u64)?;
        let replaced = "Connections without a finished handshake or authentication that were closed for newer ones";
        counter(to, "half_open_replaced", replaced, slots.half_open.replaced())?;
        let status = "HTTP connections above max_connections, for health and metrics only";
        gauge(to, "status_connections", status, slots.status.used() as u64)?;
        let held = "Bytes by which the log has grown since open snapshots keep it from freeing segments";
        gauge(to, "snapshot_held_log_bytes", held, held_log.bytes())?;
        let bytes = "Bytes of deliveries, streamed bodies and long replies, with a small addition for each write";
        counter(to, "bulk_bytes", bytes, bulk.bytes())?;
        let rounds =
            "Rounds of deliveries and long replies whose bytes were used up before their thread polled its sockets";
        counter(to, "bulk_rounds", rounds, bulk.rounds())
    }
}
