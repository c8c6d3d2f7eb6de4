//! Pages of SCAN and HSCAN: their options, and the position of the next page.
//!
//! A cursor in this crate is a *position*: the last key or field that was visited. It is empty for the beginning and
//! for the end. The server maps positions to the decimal cursors of Redis clients. An empty name never ends a page,
//! because its position would mean the end.

use std::ops::ControlFlow;

use thalweg_types::limits::MAX_REDIS_SCAN_ROWS;

use crate::{
    Reply,
    errors::{Answer, CommandEnd, NO_REPLY_ROOM, SYNTAX, refused},
    expiry::is,
    glob::{self, Matcher},
    number::integer,
    store::{Read, StoreError},
    value::ReplyBudget,
};

/// Number of names that a page visits if the client does not send the option COUNT.
const DEFAULT_COUNT: usize = 10;

/// Command that returns a page: SCAN (keys) or HSCAN (fields of a hash). Only SCAN has the option TYPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageCommand {
    Keys,
    Fields,
}

/// Parsed options of SCAN or HSCAN. They determine which names are on a page.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    count: usize,
    pattern: Option<&'a [u8]>,
    /// Kind of value that a key must have to be on the page; `None` for keys of all kinds.
    pub(crate) kind: Option<&'a [u8]>,
}

impl<'a> Page<'a> {
    pub(crate) fn parse(of: PageCommand, options: &[&'a [u8]]) -> Result<Self, CommandEnd> {
        let mut page = Self { count: DEFAULT_COUNT, pattern: None, kind: None };
        let mut rest = options;
        while let [option, after @ ..] = rest {
            let [argument, after @ ..] = after else { return Err(refused(SYNTAX)) };
            match option {
                _ if is(option, "count") => page.count = count(argument)?,
                _ if is(option, "match") => {
                    glob::check(argument)?;
                    page.pattern = Some(argument);
                }
                _ if is(option, "type") && of == PageCommand::Keys => page.kind = Some(argument),
                _ => return Err(refused(SYNTAX)),
            }
            rest = after;
        }
        page.pattern = page.pattern.filter(|pattern| *pattern != b"*");
        Ok(page)
    }
}

fn count(argument: &[u8]) -> Result<usize, CommandEnd> {
    match integer(argument)? {
        count @ 1.. => Ok(usize::try_from(count).unwrap_or(usize::MAX).min(MAX_REDIS_SCAN_ROWS)),
        _ => Err(refused(SYNTAX)),
    }
}

/// A page of SCAN or HSCAN to which names (keys or fields) are being added.
pub(crate) struct PageBuilder<'a> {
    read: &'a dyn Read,
    page: Page<'a>,
    matcher: Option<Matcher<'a>>,
    /// Error of the store that has ended the page early.
    failure: Option<StoreError>,
    looked: usize,
    budget: ReplyBudget,
    last: Vec<u8>,
    replies: Vec<Reply>,
    ended_early: bool,
}

impl<'a> PageBuilder<'a> {
    pub(crate) fn new(read: &'a dyn Read, page: Page<'a>) -> Self {
        Self {
            read,
            matcher: page.pattern.map(Matcher::new),
            failure: None,
            page,
            looked: 0,
            budget: ReplyBudget::of(read),
            last: Vec::new(),
            replies: Vec::new(),
            ended_early: false,
        }
    }

    /// Visits the next name: a key for SCAN, a field for HSCAN. If `wanted` is true and the name matches the pattern,
    /// adds the name, and its value if `value` is given. Returns `Break` if the page is full.
    pub(crate) fn visit(&mut self, name: &[u8], value: Option<&[u8]>, wanted: bool) -> ControlFlow<()> {
        let full = self.looked >= self.page.count && !self.last.is_empty();
        let matched = !full && wanted && self.matches(name);
        if self.failure.is_some() {
            return ControlFlow::Break(());
        }
        let fits = !matched || self.budget.fits(name.len() + value.map_or(0, <[u8]>::len));
        // An item that does not fit on this page fits on the next one, if necessary as the only item there.
        if full || (!fits && !self.last.is_empty()) {
            self.ended_early = true;
            return ControlFlow::Break(());
        }
        if self.budget.lacks_room() {
            self.failure = Some(StoreError::Refused(Reply::error(NO_REPLY_ROOM)));
            return ControlFlow::Break(());
        }
        self.looked += 1;
        self.last.clear();
        self.last.extend_from_slice(name);
        if matched {
            self.replies.push(Reply::bulk(name));
            self.replies.extend(value.map(Reply::bulk));
        }
        ControlFlow::Continue(())
    }

    fn matches(&mut self, name: &[u8]) -> bool {
        let Some(matcher) = &mut self.matcher else { return true };
        matcher.matches(self.read, name).unwrap_or_else(|error| {
            self.failure = Some(error);
            false
        })
    }

    /// Returns the reply of SCAN or HSCAN: the position at which the next page begins (empty if this page is the last),
    /// and the names on this page. Returns an error if matching the pattern has used up the work that the command may
    /// do.
    pub(crate) fn finish(self) -> Answer {
        self.failure.map_or(Ok(()), Err)?;
        let position = if self.ended_early { Reply::bulk(&self.last) } else { Reply::bulk(b"") };
        Ok(Reply::Array(vec![position, Reply::Array(self.replies)]))
    }
}

/// Returns the key or field after which a page begins, given the position that the client sent; `None` for the first
/// page.
pub(crate) fn after(position: &[u8]) -> Option<&[u8]> {
    (!position.is_empty()).then_some(position)
}
