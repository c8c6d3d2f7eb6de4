//! Commands that list keys: SCAN, KEYS, RANDOMKEY.

use std::ops::ControlFlow;

use thalweg_types::limits::MAX_REDIS_SCAN_ROWS;

use crate::{
    Reply,
    errors::Answer,
    expiry::is,
    glob::{self, Matcher},
    page::{Page, PageBuilder, PageCommand, after},
    random::Random,
    store::Read,
    value::ReplyBudget,
};

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE kind]`: returns a page of keys. The cursor is the last key of
/// the previous page; see [`crate::page`].
pub(super) fn scan(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let page = Page::parse(PageCommand::Keys, &args[2..])?;
    let kind = page.kind;
    let mut filling = PageBuilder::new(read, page);
    read.keys(after(args[1]), &mut |key, look| {
        filling.visit(key, None, kind.is_none_or(|kind| is(kind, look.kind.name())))
    })?;
    filling.finish()
}

pub(super) fn keys(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let pattern = args[1];
    glob::check(pattern)?;
    let all = pattern == b"*";
    let (mut budget, mut replies) = (ReplyBudget::of(read), Vec::new());
    let (mut matcher, mut failure) = (Matcher::new(pattern), None);
    read.keys(None, &mut |key, _| {
        let is_match = all
            || matcher.matches(read, key).unwrap_or_else(|error| {
                failure = Some(error);
                false
            });
        if failure.is_some() {
            return ControlFlow::Break(());
        }
        if is_match {
            if !budget.fits(key.len()) {
                return ControlFlow::Break(());
            }
            replies.push(Reply::bulk(key));
        }
        ControlFlow::Continue(())
    })?;
    failure.map_or(Ok(()), Err)?;
    budget.check()?;
    Ok(Reply::Array(replies))
}

/// `RANDOMKEY`: chooses one of the first [`MAX_REDIS_SCAN_ROWS`] keys, each with the same probability. This limit
/// bounds the cost, because the store must visit all keys before the chosen one.
pub(super) fn randomkey(read: &dyn Read, _: &[&[u8]]) -> Answer {
    let stored = usize::try_from(read.len()?).unwrap_or(usize::MAX).min(MAX_REDIS_SCAN_ROWS);
    if stored == 0 {
        return Ok(Reply::Null);
    }
    let wanted = Random(read.seed()).below(stored);
    let (mut first, mut chosen, mut looked) = (None, None, 0);
    read.keys(None, &mut |key, _| {
        if first.is_none() {
            first = Some(Reply::bulk(key));
        }
        if looked == wanted {
            chosen = Some(Reply::bulk(key));
            return ControlFlow::Break(());
        }
        looked += 1;
        ControlFlow::Continue(())
    })?;
    // Expired keys count as stored, but the visit skips them. So the chosen position may not be reached.
    Ok(chosen.or(first).unwrap_or(Reply::Null))
}
