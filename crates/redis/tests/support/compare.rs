//! Comparison of replies from Redis and from us, with the permitted differences: order where Redis guarantees
//! none, milliseconds that pass between the two requests, and random choices.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    Rng,
    connection::{Args, Target},
    frame::Frame,
    generate::{Mix, Step},
};

/// Required agreement of two replies. Errors always must have the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The same bytes.
    Exact,
    /// The same number of items, which identify the connection.
    Greeting,
    /// The same items in any order.
    Unordered,
    /// The same pairs of items in any order.
    UnorderedPairs,
    /// The same number within a tolerance.
    Near(i64),
    /// The same content. Times of streams may differ within a tolerance, and the number of tree nodes may
    /// differ.
    Times,
    /// Both are positive numbers, or neither is a number.
    Positive,
    /// Our number must equal the number of Redis's existing keys. Redis's own reply also counts expired keys
    /// that are not removed yet.
    CountOfKeys,
    /// Both replies have the same number of items, which are random keys. All items of our reply are existing keys, and
    /// if the command asked for a positive count, none appears twice.
    AmongKeys,
    /// The same as `AmongKeys`, for the fields of the hash in the first argument.
    AmongFields,
    /// The replies are pages of a scan, whose cursor is argument `cursor`. All pages from there on contain the same
    /// items, each of which is `items` replies long. Our pages repeat none.
    Pages { cursor: usize, items: usize },
}

/// Number of earlier steps that a failure prints.
const SHOWN: usize = 40;
/// Redis's numbers from here on are deadlines that we shorten; see `docs/redis.md`. In milliseconds or
/// seconds.
const SHORTENED: i64 = i64::MAX / 1000 / 1000 - 3_000_000_000;
/// Lower bound, in seconds, of deadlines that a cache has shortened: 475 years.
const SHORTENED_IN_A_CACHE: i64 = 15_000_000_000;

/// Redis and our server, with the last steps.
pub struct Pair<'t> {
    pub redis: &'t mut dyn Target,
    pub ours: &'t mut dyn Target,
    shown: VecDeque<String>,
    /// Number of replies of each command other than errors.
    pub answered: BTreeMap<String, usize>,
}

impl<'t> Pair<'t> {
    pub fn new(redis: &'t mut dyn Target, ours: &'t mut dyn Target) -> Self {
        Self { redis, ours, shown: VecDeque::new(), answered: BTreeMap::new() }
    }

    /// Runs random steps from a seed.
    pub fn run(&mut self, mix: &Mix, seed: u64, steps: usize) {
        let mut rng = Rng(seed);
        for at in 0..steps {
            let step = mix.step(&mut rng);
            self.step(&step, &format!("seed {seed} step {at}"));
        }
    }

    /// Runs one step on both sides.
    pub fn step(&mut self, step: &Step, place: &str) {
        let (theirs, ours) = (self.redis.ask(&step.args), self.ours.ask(&step.args));
        let shown: Vec<_> = step.args.iter().map(|arg| format!("\"{}\"", arg.escape_ascii())).collect();
        self.shown.push_back(format!("{} -> {}", cut(&shown.join(" ")), cut(&format!("{theirs:?}"))));
        if self.shown.len() > SHOWN {
            self.shown.pop_front();
        }
        if let Err(reason) = self.compare(step, &theirs, &ours) {
            let before: Vec<_> = self.shown.iter().map(String::as_str).collect();
            panic!("{place}: {reason}\n  redis {theirs:?}\n  ours  {ours:?}\nafter\n  {}", before.join("\n  "));
        }
        if !theirs.is_error() {
            *self.answered.entry(String::from_utf8_lossy(&step.args[0]).to_lowercase()).or_default() += 1;
        }
    }

    fn compare(&mut self, step: &Step, theirs: &Frame, ours: &Frame) -> Result<(), String> {
        let same = |same: bool| if same { Ok(()) } else { Err(format!("not {:?}", step.compare)) };
        if theirs.is_error() || ours.is_error() {
            return same(theirs == ours);
        }
        match step.compare {
            Compare::Exact
            | Compare::Greeting
            | Compare::Unordered
            | Compare::UnorderedPairs
            | Compare::Near(_)
            | Compare::Positive
            | Compare::Times => same(alike(step.compare, theirs, ours)),
            Compare::CountOfKeys => {
                let all = self.redis.ask(&[b"KEYS".to_vec(), b"*".to_vec()]);
                same(ours.integer() == i64::try_from(all.items().len()).ok())
            }
            Compare::AmongKeys => {
                let all = self.redis.ask(&[b"KEYS".to_vec(), b"*".to_vec()]);
                same(chosen(theirs, ours, all.items(), 1, false))
            }
            Compare::AmongFields => {
                let all = self.redis.ask(&[b"HGETALL".to_vec(), step.args[1].clone()]);
                let repeats = step.args.get(2).is_some_and(|count| count.first() == Some(&b'-'));
                let by = if step.args.len() > 3 { 2 } else { 1 };
                let all = if by == 1 {
                    all.items().chunks(2).flat_map(|pair| &pair[..1]).cloned().collect()
                } else {
                    all.items().to_vec()
                };
                same(chosen(theirs, ours, &all, by, repeats))
            }
            Compare::Pages { cursor, items } => {
                let theirs = pages(self.redis, &step.args, cursor, items, theirs.clone());
                let ours = pages(self.ours, &step.args, cursor, items, ours.clone());
                let once = ours.len() == ours.iter().collect::<BTreeSet<_>>().len();
                let theirs: BTreeSet<_> = theirs.into_iter().collect();
                let same_items = theirs == ours.iter().cloned().collect();
                if once && same_items { Ok(()) } else { Err(format!("pages differ: {theirs:?} {ours:?}")) }
            }
        }
    }
}

/// Returns true if two replies agree, as far as this can be decided without further requests.
pub fn alike(compare: Compare, theirs: &Frame, ours: &Frame) -> bool {
    if theirs.is_error() || ours.is_error() {
        return theirs == ours;
    }
    match compare {
        Compare::Exact => theirs == ours,
        Compare::Unordered => theirs.sorted(1) == ours.sorted(1),
        Compare::UnorderedPairs => theirs.sorted(2) == ours.sorted(2),
        Compare::Near(by) => match (theirs.integer(), ours.integer()) {
            (Some(theirs), Some(ours)) if theirs > SHORTENED => {
                ours > SHORTENED_IN_A_CACHE && ours <= theirs.saturating_add(by)
            }
            (Some(theirs), Some(ours)) if theirs > 0 => theirs.abs_diff(ours) <= by.unsigned_abs(),
            _ => theirs == ours,
        },
        Compare::Positive => match (theirs.integer(), ours.integer()) {
            (Some(theirs), Some(ours)) => theirs > 0 && ours > 0,
            _ => theirs == ours,
        },
        Compare::Times => same_but_times(theirs, ours),
        Compare::Greeting | Compare::AmongKeys | Compare::AmongFields => theirs.items().len() == ours.items().len(),
        Compare::CountOfKeys | Compare::Pages { .. } => true,
    }
}

/// Asserts that both sides have the same keys with the same values and deadlines.
pub fn contents_are_alike(redis: &mut dyn Target, ours: &mut dyn Target, place: &str) {
    let all = [b"KEYS".to_vec(), b"*".to_vec()];
    let (theirs, mine) = (redis.ask(&all).sorted(1), ours.ask(&all).sorted(1));
    assert_eq!(theirs, mine, "{place}: keys");
    for key in theirs.items().iter().filter_map(Frame::bulk) {
        let mut both = |compare: Compare, command: &str| {
            let arg = |word: &str| if word == "KEY" { key.to_vec() } else { word.as_bytes().to_vec() };
            let args: Vec<_> = command.split(' ').map(arg).collect();
            let (theirs, mine) = (redis.ask(&args), ours.ask(&args));
            let shown = key.escape_ascii();
            assert!(alike(compare, &theirs, &mine), "{place}: {command} {shown}\n  redis {theirs:?}\n  ours  {mine:?}");
            theirs
        };
        let kind = both(Compare::Exact, "TYPE KEY");
        both(Compare::Near(5000), "PEXPIRETIME KEY");
        match kind {
            Frame::Line(_, kind) if kind == b"string" => both(Compare::Exact, "GET KEY"),
            Frame::Line(_, kind) if kind == b"hash" => both(Compare::UnorderedPairs, "HGETALL KEY"),
            Frame::Line(_, kind) if kind == b"stream" => both(Compare::Times, "XINFO STREAM KEY FULL COUNT 0"),
            _ => kind,
        };
    }
}

/// Permitted difference between two times in milliseconds.
const TIMES_DIFFER: u64 = 5000;

/// Returns true if two replies about streams agree, except for times of requests and deliveries, and for
/// numbers of nodes.
fn same_but_times(theirs: &Frame, ours: &Frame) -> bool {
    let (Frame::Many(their_kind, Some(theirs)), Frame::Many(kind, Some(ours))) = (theirs, ours) else {
        return theirs == ours;
    };
    // A pending entry ends with the time and the number of its deliveries.
    let is_time = |at: usize| {
        let is_pending = theirs.len() > 2 && theirs[theirs.len() - 1].integer().is_some();
        let name = if at > 0 { theirs[at - 1].bulk() } else { None };
        (is_pending && at + 2 == theirs.len()) || name == Some(b"idle") || name == Some(b"seen-time")
    };
    let same = |at: usize| match (theirs[at].integer(), ours[at].integer()) {
        _ if at > 0 && theirs[at - 1].bulk() == Some(b"radix-tree-nodes") => true,
        (Some(theirs), Some(ours)) if is_time(at) => theirs.abs_diff(ours) <= TIMES_DIFFER,
        _ => same_but_times(&theirs[at], &ours[at]),
    };
    their_kind == kind && theirs.len() == ours.len() && (0..theirs.len()).all(same)
}

/// The first 200 characters of a text.
fn cut(text: &str) -> String {
    text.chars().take(200).collect()
}

/// Returns true if both have the same number of items, and all of ours are in `all`, in groups of `by`.
fn chosen(theirs: &Frame, ours: &Frame, all: &[Frame], by: usize, repeats: bool) -> bool {
    let (Frame::Many(their_kind, Some(_)), Frame::Many(kind, Some(_))) = (theirs, ours) else {
        // A single item, or none.
        return (theirs.bulk().is_some() && all.contains(ours)) || theirs == ours;
    };
    // RESP3 has an array for each pair, RESP2 one array for all of them.
    let flat = |frame: &Frame| -> Vec<Frame> {
        frame
            .items()
            .iter()
            .flat_map(|item| if item.items().is_empty() { std::slice::from_ref(item) } else { item.items() }.to_vec())
            .collect()
    };
    let shapes = |frame: &Frame| frame.items().iter().map(|item| item.items().len()).collect::<Vec<_>>();
    let all: BTreeSet<_> = all.chunks(by).collect();
    let flattened = flat(ours);
    let among = flattened.chunks(by).all(|group| all.contains(group));
    let different = flattened.chunks(by).collect::<BTreeSet<_>>().len() * by == flattened.len();
    kind == their_kind && shapes(theirs) == shapes(ours) && among && (repeats || different)
}

/// Collects the items of all pages.
fn pages(target: &mut dyn Target, args: &Args, cursor: usize, items: usize, first: Frame) -> Vec<Vec<Frame>> {
    let (mut page, mut all, mut args) = (first, Vec::new(), args.clone());
    loop {
        let [next, found] = page.items() else { panic!("no page: {page:?}") };
        all.extend(found.items().chunks(items).map(<[Frame]>::to_vec));
        let next = next.bulk().expect("a cursor").to_vec();
        if next == b"0" {
            return all;
        }
        args[cursor] = next;
        page = target.ask(&args);
    }
}
