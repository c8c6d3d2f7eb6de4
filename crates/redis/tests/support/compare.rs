//! The same commands asked of Redis and of us, and what may differ: the order where Redis promises none, milliseconds that
//! pass between the two, and what is chosen by chance.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    Rng,
    connection::{Args, Target},
    frame::Frame,
    generate::{Mix, Step},
};

/// What two replies must have in common. Errors are always compared byte by byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// All bytes.
    Exact,
    /// How many items: they say which connection it is.
    Greeting,
    /// Their items, in whatever order.
    Unordered,
    /// Their items two by two, in whatever order.
    UnorderedPairs,
    /// The number, give or take.
    Near(i64),
    /// All but what streams say of times: those, give or take; and how many nodes there are.
    Times,
    /// That both are positive numbers, or neither is a number.
    Positive,
    /// Ours is how many keys Redis has; its own number has those in it that have ended and are not removed yet.
    CountOfKeys,
    /// How many there are, and that ours are among all keys; a positive count has none twice.
    AmongKeys,
    /// The same among the fields of the hash that is the first argument.
    AmongFields,
    /// All pages from the cursor at that argument on have the same items, each so many replies; ours have none twice.
    Pages { cursor: usize, items: usize },
}

/// Steps that are shown when one fails.
const SHOWN: usize = 40;
/// Numbers of Redis from here on are deadlines that we shorten, see `docs/redis.md`; in milliseconds or seconds.
const SHORTENED: i64 = i64::MAX / 1000 / 1000 - 3_000_000_000;
/// What a cache makes of them is more than this, in seconds: 475 years.
const SHORTENED_IN_A_CACHE: i64 = 15_000_000_000;

/// Both sides.
pub struct Pair<'t> {
    pub redis: &'t mut dyn Target,
    pub ours: &'t mut dyn Target,
    shown: VecDeque<String>,
    /// How often each command was answered with something else than an error.
    pub answered: BTreeMap<String, usize>,
}

impl<'t> Pair<'t> {
    pub fn new(redis: &'t mut dyn Target, ours: &'t mut dyn Target) -> Self {
        Self { redis, ours, shown: VecDeque::new(), answered: BTreeMap::new() }
    }

    /// Random steps from a seed.
    pub fn run(&mut self, mix: &Mix, seed: u64, steps: usize) {
        let mut rng = Rng(seed);
        for at in 0..steps {
            let step = mix.step(&mut rng);
            self.step(&step, &format!("seed {seed} step {at}"));
        }
    }

    /// One step, on both sides.
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

/// Whether two replies have in common what can be told without asking again.
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

/// Both hold the same keys with the same values and deadlines.
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

/// Milliseconds that may lie between what the two say of a time.
const TIMES_DIFFER: u64 = 5000;

/// Whether two replies about streams are the same, but for when something was seen or delivered, and for nodes.
fn same_but_times(theirs: &Frame, ours: &Frame) -> bool {
    let (Frame::Many(their_kind, Some(theirs)), Frame::Many(kind, Some(ours))) = (theirs, ours) else {
        return theirs == ours;
    };
    // A pending entry ends with when it was delivered and how often.
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

/// The beginning of a text.
fn cut(text: &str) -> String {
    text.chars().take(200).collect()
}

/// Whether both chose as many, and ours are among all, which come `by` so many at a time.
fn chosen(theirs: &Frame, ours: &Frame, all: &[Frame], by: usize, repeats: bool) -> bool {
    let (Frame::Many(their_kind, Some(_)), Frame::Many(kind, Some(_))) = (theirs, ours) else {
        // One, or none.
        return (theirs.bulk().is_some() && all.contains(ours)) || theirs == ours;
    };
    // RESP3 has an array for each pair, RESP2 one for all.
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

/// All items of all pages.
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
