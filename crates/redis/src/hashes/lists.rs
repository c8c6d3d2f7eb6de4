//! Commands on many fields: all fields, pages, random choices. Fields are ordered by the bytes of their names.

use std::ops::{Bound, ControlFlow};

use thalweg_types::limits::{MAX_REDIS_REPLY_BYTES, MAX_REDIS_SCAN_ROWS, REDIS_REPLY_ITEM_BYTES};

use super::hash::Hash;
use crate::{
    Reply,
    errors::{Answer, CommandEnd, REPLY_TOO_LARGE, SYNTAX, refused},
    expiry::is,
    number::integer_between,
    page::{Page, PageBuilder, PageCommand, after},
    random::Random,
    store::Read,
    value::ReplyBudget,
};

pub(super) fn hgetall(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let mut pairs = Vec::new();
    each(read, args[1], |budget, field, value| {
        let fits = budget.fits(field.len()) && budget.fits(value.len());
        if fits {
            pairs.push((Reply::bulk(field), Reply::bulk(value)));
        }
        fits
    })?;
    Ok(Reply::Map(pairs))
}

pub(super) fn hkeys(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let mut replies = Vec::new();
    each(read, args[1], |budget, field, _| {
        let fits = budget.fits(field.len());
        if fits {
            replies.push(Reply::bulk(field));
        }
        fits
    })?;
    Ok(Reply::Array(replies))
}

pub(super) fn hvals(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let mut replies = Vec::new();
    each(read, args[1], |budget, _, value| {
        let fits = budget.fits(value.len());
        if fits {
            replies.push(Reply::bulk(value));
        }
        fits
    })?;
    Ok(Reply::Array(replies))
}

/// Visits the fields of a hash in order, and ends when the visited fields no longer fit into a reply. A missing hash
/// has no fields.
fn each(
    read: &dyn Read,
    key: &[u8],
    mut visit: impl FnMut(&mut ReplyBudget, &[u8], &[u8]) -> bool,
) -> Result<(), CommandEnd> {
    let Some(hash) = Hash::find(read, key)? else { return Ok(()) };
    let mut budget = ReplyBudget::of(read);
    read.parts(hash.id, Bound::Unbounded, Bound::Unbounded, false, &mut |field, value| {
        if visit(&mut budget, field, value) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    budget.check()
}

/// `HSCAN key cursor [MATCH pattern] [COUNT count]`: returns a page of fields. The cursor is the last field of the
/// previous page; see [`crate::page`].
pub(super) fn hscan(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let Some(hash) = Hash::find(read, args[1])? else {
        return Ok(Reply::Array(vec![Reply::bulk(b""), Reply::Array(Vec::new())]));
    };
    let mut filling = PageBuilder::new(read, Page::parse(PageCommand::Fields, &args[3..])?);
    let lower = after(args[2]).map_or(Bound::Unbounded, Bound::Excluded);
    read.parts(hash.id, lower, Bound::Unbounded, false, &mut |field, value| filling.visit(field, Some(value), true))?;
    filling.finish()
}

/// `HRANDFIELD`: chooses among the first [`MAX_REDIS_SCAN_ROWS`] fields of a hash, each with the same probability. This
/// limit bounds the cost, because the store must visit all fields before the chosen one.
pub(super) fn hrandfield(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let Some(count) = args.get(2) else {
        let one = choose(read, args[1], 1, false)?.pop();
        return Ok(one.map_or(Reply::Null, |(field, _)| field));
    };
    // These are Redis's own limits. They lead to the same error as in Redis.
    let count = integer_between(count, -i64::MAX, i64::MAX)?;
    let with_values = match args[3..] {
        [] => false,
        [option] if is(option, "withvalues") => true,
        _ => return Err(refused(SYNTAX)),
    };
    if with_values && count.unsigned_abs() > i64::MAX.unsigned_abs() / 2 {
        return Ok(Reply::error("ERR value is out of range"));
    }
    let pairs = choose(read, args[1], count, with_values)?;
    Ok(if with_values {
        Reply::FlatPairs(pairs)
    } else {
        Reply::Array(pairs.into_iter().map(|(field, _)| field).collect())
    })
}

/// Returns up to `count` different fields of a hash, or, if `count` is negative, exactly `-count` fields, possibly
/// with repetitions. Includes the values of the fields if requested.
fn choose(read: &dyn Read, key: &[u8], count: i64, with_values: bool) -> Result<Vec<(Reply, Reply)>, CommandEnd> {
    let Some(hash) = Hash::find(read, key)? else { return Ok(Vec::new()) };
    let fields = usize::try_from(hash.fields).unwrap_or(usize::MAX).min(MAX_REDIS_SCAN_ROWS);
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let mut random = Random(read.seed());
    // Number of times that each field was chosen, by its position.
    let mut chosen = vec![0_usize; fields];
    if count < 0 {
        if wanted > MAX_REDIS_REPLY_BYTES / REDIS_REPLY_ITEM_BYTES {
            return Err(refused(REPLY_TOO_LARGE));
        }
        // Each choice costs a random number and an element of the reply.
        read.work(2 * wanted as u64)?;
        for _ in 0..wanted {
            chosen[random.below(fields)] += 1;
        }
    } else {
        // A field is chosen with the probability of the fields still wanted divided by the remaining fields.
        let mut wanted = wanted.min(fields);
        for (at, chosen) in chosen.iter_mut().enumerate() {
            if random.below(fields - at) < wanted {
                *chosen = 1;
                wanted -= 1;
            }
        }
    }
    let mut pairs = gather(read, &hash, &chosen, with_values)?;
    if count < 0 {
        random.shuffle(&mut pairs);
    }
    Ok(pairs)
}

/// Returns the chosen fields of a hash. `chosen` has the number of times that each field, in order, was chosen. A field
/// that was chosen several times is repeated.
fn gather(
    read: &dyn Read,
    hash: &Hash,
    chosen: &[usize],
    with_values: bool,
) -> Result<Vec<(Reply, Reply)>, CommandEnd> {
    let (mut pairs, mut budget, mut times) = (Vec::new(), ReplyBudget::of(read), chosen.iter());
    read.parts(hash.id, Bound::Unbounded, Bound::Unbounded, false, &mut |field, value| {
        let Some(&times) = times.next() else { return ControlFlow::Break(()) };
        if times > 0 {
            let value = if with_values { value } else { b"" };
            let fits = (0..times).all(|_| budget.fits(field.len()) && budget.fits(value.len()));
            if !fits {
                return ControlFlow::Break(());
            }
            let pair = (Reply::bulk(field), Reply::bulk(value));
            pairs.extend((0..times).map(|_| pair.clone()));
        }
        ControlFlow::Continue(())
    })?;
    budget.check()?;
    Ok(pairs)
}
