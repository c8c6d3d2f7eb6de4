//! Prepares and checks the runs of a scenario that uses a stream, a consumer group or a subject: creates them, receives
//! published messages during a run, and compares everything that arrived afterwards.
//!
//! Owns: the names, which are new for each run of the suite, and the totals of all rounds. Does not own: the check of
//! single replies (`thalweg_load::feeds`).

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    file::Scenario,
    mix::{Kind, Mix},
    options::{GIVE_UP, ScenarioOptions},
    work::Counts,
};
use crate::{
    BenchError,
    latency::{Latencies, micros, nanos},
    load::{
        Merge as _, Outcome, Rounds, Validity,
        feeds::{Feed, FeedFault, FeedFaults, FeedParts, FeedProtocol, Listening, SubscriberLedger},
        pairs::{Codec, Content},
    },
    report::{Check, Table, Verdict, cells},
};

/// The stream, consumer group and subject of a scenario on one server. Dropping this value deletes the stream with its
/// group. If the deletion fails, they stay on the server, where they do no harm.
pub(super) struct FeedRun {
    /// Makes the requests, and keeps the account of records and messages.
    pub feed: Arc<Feed>,
    host: String,
    subscribers: usize,
    mix: Mix,
}

/// Counts of the records and messages that arrived in all rounds, with their end-to-end times.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    times: [Latencies; 3],
    published: u64,
    received: u64,
    dropped: u64,
    lost: u64,
    faults: FeedFaults,
}

impl FeedRun {
    /// Creates the stream and the group on the server called `host`, if the mix uses them. `create` does this over a
    /// protocol, under a name that no other run uses. Returns `None` if the mix uses only keys.
    pub(super) fn create<P: FeedProtocol + 'static>(
        options: &ScenarioOptions,
        scenario: &Scenario,
        host: &str,
        create: impl FnOnce(String, FeedParts) -> Result<P, BenchError>,
    ) -> Result<Option<Self>, BenchError> {
        let mix = &scenario.mix;
        if !mix.has(|kind| !kind.has_key()) {
            return Ok(None);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos);
        let name = format!("{}-{:x}-{now:x}", options.keyspace, std::process::id());
        let parts = FeedParts { stream: mix.has(Kind::uses_stream), group: mix.share(Kind::Fetch) > 0.0 };
        let protocol = Box::new(create(name, parts)?);
        let feed = Arc::new(Feed::new(protocol, scenario.feeds.sizes, options.seed));
        Ok(Some(Self { feed, host: host.to_owned(), subscribers: scenario.feeds.subscribers, mix: mix.clone() }))
    }

    /// Appends one batch to the stream, and returns the durability level that the reply names.
    pub(super) fn level_of_append(&self, codec: &impl Codec) -> Result<Option<String>, BenchError> {
        let fail = |problem: String| BenchError::target(&self.host)(format!("an append: {problem}"));
        let (mut connection, step) = (codec.connect()?, self.feed.append());
        self.feed.encode(step, connection.out());
        let (content, level) = connection
            .exchange(GIVE_UP, |input| {
                let Some(answer) = self.feed.decode(step, input)? else { return Ok(None) };
                let content = match answer.content {
                    Content::Value(content) => content.into_owned(),
                    other => return Err(format!("{other:?}")),
                };
                Ok(Some((content, self.feed.protocol.level(&input[..answer.bytes]))))
            })
            .map_err(&fail)?;
        self.feed.judge(step, &content).map_err(|problem| fail(problem.text))?;
        Ok(level)
    }

    /// Performs one run with its subscribers, and adds the received messages to `arrivals`. `warmup` is in nanoseconds.
    pub(super) fn run(
        &self,
        warmup: u64,
        arrivals: &mut Arrivals,
        run: impl FnOnce() -> Result<Outcome<Counts>, BenchError>,
    ) -> Result<Outcome<Counts>, BenchError> {
        let publishes = self.mix.share(Kind::Publish) > 0.0;
        let start = || Listening::start(&self.host, self.subscribers, &self.feed);
        let listening = if publishes { Some(start()?) } else { None };
        let (before, _) = self.feed.published();
        self.feed.count_times_after(warmup);
        let mut outcome = run()?;
        let published = self.feed.published().0 - before;
        if let Some(listening) = listening {
            let ended = listening.finish(published, self.subscribers);
            let ledgers = ended.map_err(BenchError::subject(&self.host, "subscribing"))?;
            let faults = arrivals.subscribers(published, &ledgers);
            outcome.tally.own.faults.merge(faults);
            outcome.validity = with_faults(&outcome.validity, faults);
        }
        let times = self.feed.take_times();
        arrivals.times.iter_mut().zip(&times).for_each(|(own, more)| own.merge(more));
        Ok(outcome)
    }

    /// Returns the checks after all runs. `found` are the faults that were found by reading the whole stream and
    /// emptying the group.
    pub(super) fn checks(&self, what: &str, arrivals: &Arrivals, mut found: FeedFaults) -> Vec<Check> {
        let mut checks = Vec::new();
        let check = |what: String, required: &str, measured, is_met| Check {
            what,
            required: required.to_owned(),
            measured,
            verdict: if is_met { Verdict::Met } else { Verdict::Missed },
            is_goal: false,
        };
        if self.mix.has(Kind::uses_stream) {
            found.add(FeedFault::Lost, self.feed.appends.lost_records());
            let records = self.feed.appends.acked_records();
            let measured = format!("{records} records: {found}");
            let required = "all acknowledged records are in the stream, once and in order";
            checks.push(check(format!("{what}: the stream after the runs"), required, measured, !found.any()));
        }
        if self.mix.share(Kind::Fetch) > 0.0 {
            let (group, lost) = (&self.feed.group, self.feed.undelivered());
            let measured = format!(
                "{} records delivered, {lost} lost, {} redelivered, {} acked too late",
                group.delivered(),
                group.redelivered(),
                group.lapsed()
            );
            let required = "all acknowledged records are delivered; redeliveries are shown";
            checks.push(check(format!("{what}: the group after the runs"), required, measured, lost == 0));
        }
        if self.mix.share(Kind::Publish) > 0.0 {
            let Arrivals { published, received, dropped, lost, faults, .. } = arrivals;
            let measured = format!(
                "{published} messages to each of {} subscribers: {received} received, {lost} lost, {dropped} of them \
                 reported as dropped; {} duplicated, {} reordered, {} with wrong content",
                self.subscribers, faults.duplicated, faults.reordered, faults.wrong
            );
            let required = "all delivered messages are right, in order and delivered once; losses are shown";
            checks.push(check(format!("{what}: the subscribers"), required, measured, !faults.any()));
        }
        checks
    }

    /// Returns the table with the rates and end-to-end times of records and messages, for each kind of operation.
    pub(super) fn table(&self, rounds: &Rounds<Counts>, arrivals: &Arrivals) -> Table {
        let mut table = Table::new("records and messages: end to end from the moment an append or a publish was due");
        for kind in self.mix.kinds().filter(|kind| !kind.has_key()) {
            let records = |outcome: &Outcome<Counts>| outcome.tally.own.records[kind as usize] as f64;
            let operations = |outcome: &Outcome<Counts>| outcome.tally.times[kind as usize].count() as f64;
            let times = match kind {
                Kind::ReadRecords => Some(&arrivals.times[0]),
                Kind::Fetch => Some(&arrivals.times[1]),
                Kind::Publish => Some(&arrivals.times[2]),
                _ => None,
            };
            let times = times.filter(|times| times.count() > 0);
            let at = |percentile| times.map_or(f64::NAN, |times| micros(times.percentile(percentile)));
            table.row(cells! {
                "operation" => kind.name(),
                "records/s" => rounds.median(|outcome| records(outcome) / outcome.seconds),
                "records/operation" => rounds.median(|outcome| records(outcome) / operations(outcome)),
                "batches/s" => matches!(kind, Kind::Append | Kind::Publish)
                    .then(|| rounds.median(|outcome| operations(outcome) / outcome.seconds)),
                "end to end p50 µs" => at(50.0), "p95 µs" => at(95.0), "p99 µs" => at(99.0), "p99.9 µs" => at(99.9),
                "max µs" => at(100.0), "times" => times.map(Latencies::count),
            });
        }
        table
    }
}

/// Returns the validity of a run, made worse by faults that its subscribers found. The load generator judges the run
/// before its subscribers have ended, and sees only the replies to publishes.
fn with_faults(validity: &Validity, faults: FeedFaults) -> Validity {
    if !faults.any() {
        return validity.clone();
    }
    Validity::worst([validity, &Validity::Errors(format!("messages that subscribers received: {faults}"))])
}

impl Drop for FeedRun {
    fn drop(&mut self) {
        if self.mix.has(Kind::uses_stream) {
            self.feed.protocol.remove();
        }
    }
}

impl Arrivals {
    /// Adds the messages that the subscribers of one run received. Returns their faults, except lost messages.
    fn subscribers(&mut self, published: u64, ledgers: &[SubscriberLedger]) -> FeedFaults {
        let mut faults = FeedFaults::default();
        let mut orders = ledgers.iter().filter_map(|ledger| ledger.order(published));
        if let Some(first) = orders.next() {
            faults.add(FeedFault::Reordered, orders.filter(|order| *order != first).count() as u64);
        }
        for ledger in ledgers {
            faults.merge(ledger.faults);
            self.received += ledger.received;
            self.dropped += ledger.dropped;
            self.lost += published.saturating_sub(ledger.received);
        }
        self.published += published;
        self.faults.merge(faults);
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_shown_and_other_faults_returned() {
        let ledger = |messages: &[u64]| {
            let mut ledger = SubscriberLedger::new(1);
            messages.iter().for_each(|message| ledger.take(Some(*message)));
            ledger
        };
        let mut arrivals = Arrivals::default();
        let faults = arrivals.subscribers(3, &[ledger(&[0, 1, 2]), ledger(&[0, 2])]);
        assert!(!faults.any() && (arrivals.received, arrivals.lost) == (5, 1));
        let faults = arrivals.subscribers(3, &[ledger(&[0, 1, 2]), ledger(&[1, 0, 2]), ledger(&[0, 0])]);
        assert_eq!((faults.reordered, faults.duplicated, arrivals.lost), (1, 1, 3));
        assert_eq!((arrivals.published, arrivals.faults), (6, faults));
    }

    #[test]
    fn a_run_whose_subscribers_found_faults_has_errors() {
        let none = FeedFaults::default();
        assert_eq!(with_faults(&Validity::Good, none), Validity::Good);
        let mut faults = none;
        faults.add(FeedFault::Duplicated, 2);
        let late = Validity::Overloaded("late".to_owned());
        assert_eq!(with_faults(&late, none), late);
        let Validity::Errors(why) = with_faults(&late, faults) else { panic!("the run has no errors") };
        assert!(why.contains("2 duplicated"), "{why}");
    }
}
