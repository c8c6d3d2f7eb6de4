//! `cache`: bounded maps in a server's memory.
//!
//! Owns: the arguments and the output of its subcommands. Does not own: the requests (`session/caches`).

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use thalweg_types::command::Deadline;

use super::{
    input,
    time::{parse_touch, parse_ttl},
};
use crate::{
    args::{KeyFormat, ServerArgs},
    failure::{Exit, Failure},
    figures::{leaves, shown, without_unit, words},
    render::{self, Lines, print_result},
    session::{Entry, Expected, Session},
    span::parse_bytes,
};

/// Number of keys that the command requests in each page.
const PAGE_KEYS: u64 = 10_000;

#[derive(Subcommand, Debug)]
pub(crate) enum Cache {
    /// List caches with their figures
    List(PlainArgs),
    /// Create a cache; an existing one is not changed. The first put also creates one
    Create {
        /// Name of the cache
        cache: String,
        /// Maximum size of the cache [default: that of the server's configuration]
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
        max_bytes: Option<u64>,
        #[command(flatten)]
        place: ServerArgs,
    },
    /// Show the figures of a cache: entries, bytes, hits, misses, evictions
    #[command(alias = "stats")]
    Show(CacheArgs),
    /// Remove all entries of a cache
    Clear(CacheArgs),
    /// Drop a cache and its entries
    Drop(CacheArgs),
    /// Print an entry's value; ends with 3 if the entry does not exist
    Get {
        #[command(flatten)]
        key: Key,
        #[command(flatten)]
        raw: render::RawArgs,
    },
    /// Put an entry
    Put(Put),
    /// Remove an entry
    #[command(alias = "delete")]
    Del {
        #[command(flatten)]
        key: Key,
        /// Remove the entry only if it has this version
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
    /// Change the lifetime of an entry without changing its value
    Touch {
        #[command(flatten)]
        key: Key,
        /// New lifetime from now on: a span such as 30s, or never
        #[arg(long, value_name = "TTL", value_parser = parse_touch)]
        ttl: Deadline,
    },
    /// Add to a counter, and print its new value
    Incr {
        #[command(flatten)]
        key: Key,
        /// Number to add to the counter
        #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
        /// New lifetime of the entry [default: the current one]
        #[arg(long, value_name = "TTL", value_parser = parse_ttl)]
        ttl: Option<Deadline>,
    },
    /// List keys in any order
    Keys {
        /// Name of the cache
        cache: String,
        /// Maximum number of keys to list
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// Format in which keys are shown
        #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
        key_format: KeyFormat,
        #[command(flatten)]
        place: ServerArgs,
    },
}

#[derive(Args, Debug)]
pub(crate) struct PlainArgs {
    #[command(flatten)]
    pub place: ServerArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CacheArgs {
    /// Name of the cache
    pub cache: String,
    #[command(flatten)]
    pub place: ServerArgs,
}

#[derive(Args, Debug)]
pub(crate) struct Key {
    /// Name of the cache
    pub cache: String,
    /// Key of the entry
    pub key: String,
    /// Format in which the key is typed
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub key_format: KeyFormat,
    #[command(flatten)]
    pub place: ServerArgs,
}

impl Key {
    fn bytes(&self) -> Result<Vec<u8>, Failure> {
        self.key_format.parse(&self.key)
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  thalweg cache put sessions ada token --ttl 30m\n  \
                        thalweg cache put pages / - < index.html\n  thalweg cache put sessions ada new --if-version 7")]
pub(crate) struct Put {
    #[command(flatten)]
    pub key: Key,
    /// Value of the entry; `-` or no argument reads stdin
    pub value: Option<String>,
    /// Lifetime of the entry: a span such as 30s, never, or keep (the current one) [default: until it is evicted]
    #[arg(long, value_name = "TTL", value_parser = parse_ttl)]
    pub ttl: Option<Deadline>,
    /// Write only if the entry does not exist
    #[arg(long, group = "condition")]
    pub if_absent: bool,
    /// Write only if the entry exists
    #[arg(long, group = "condition")]
    pub if_present: bool,
    /// Write only if the entry has this version
    #[arg(long, value_name = "N", group = "condition")]
    pub if_version: Option<u64>,
}

impl Cache {
    /// Returns the options that name the server. Each subcommand has these options.
    pub(crate) fn place(&self) -> &ServerArgs {
        match self {
            Self::List(PlainArgs { place }) | Self::Create { place, .. } | Self::Keys { place, .. } => place,
            Self::Show(named) | Self::Clear(named) | Self::Drop(named) => &named.place,
            Self::Get { key, .. } | Self::Del { key, .. } | Self::Touch { key, .. } | Self::Incr { key, .. } => {
                &key.place
            }
            Self::Put(put) => &put.key.place,
        }
    }
}

pub(crate) fn run(command: &Cache) -> Result<(), Failure> {
    let (session, json) = (&Session::of_server(command.place())?, command.place().json);
    match command {
        Cache::List(_) => list(&session.caches()?, json),
        Cache::Create { cache, max_bytes, .. } => {
            let (shown, created) = session.create_cache(cache, *max_bytes)?;
            let max = render::bytes(shown["max_bytes"].as_u64().unwrap_or_default());
            print_result(&shown, json, || format!("{}, at most {max}", if created { "created" } else { "exists" }))
        }
        Cache::Show(named) => show(&session.cache_stats(&named.cache)?, json),
        Cache::Clear(named) => {
            session.clear_cache(&named.cache)?;
            print_result(&json!({ "cache": named.cache }), json, || "ok, empty".to_owned())
        }
        Cache::Drop(named) => {
            session.drop_cache(&named.cache)?;
            print_result(&json!({ "cache": named.cache }), json, || {
                format!("ok, {} and its entries are gone", named.cache)
            })
        }
        Cache::Get { key, raw } => get(session, key, *raw, json),
        Cache::Put(put) => {
            let expected = match (put.if_absent, put.if_present, put.if_version) {
                (true, ..) => Expected::Absent,
                (_, true, _) => Expected::Present,
                (.., Some(version)) => Expected::Revision(version),
                _ => Expected::Anything,
            };
            let value = input::value(put.value.as_deref())?;
            let version = session.put_entry(&put.key.cache, &put.key.bytes()?, &value, put.ttl, expected)?;
            print_result(&json!({ "version": version }), json, || format!("ok, version {version}"))
        }
        Cache::Del { key, if_version } => {
            let expected = if_version.map_or(Expected::Anything, Expected::Revision);
            session.delete_entry(&key.cache, &key.bytes()?, expected)?;
            print_result(&json!({}), json, || "ok".to_owned())
        }
        Cache::Touch { key, ttl } => {
            session.touch_entry(&key.cache, &key.bytes()?, *ttl)?;
            print_result(&json!({}), json, || "ok".to_owned())
        }
        Cache::Incr { key, by, ttl } => {
            let value = session.add_to_entry(&key.cache, &key.bytes()?, *by, *ttl)?;
            print_result(&json!({ "value": value }), json, || value.to_string())
        }
        Cache::Keys { cache, limit, key_format, .. } => keys(session, cache, *limit, *key_format, json),
    }
}

fn get(session: &Session, key: &Key, raw: render::RawArgs, json: bool) -> Result<(), Failure> {
    let Some(Entry { value, version, ttl }) = session.entry(&key.cache, &key.bytes()?)? else {
        let message = format!("there is no key {:?} in cache {:?}", key.key, key.cache);
        return Err(Failure::new(Exit::NotFound, "not_found", message)
            .then("it was never put, it expired, it was evicted, or the server restarted"));
    };
    if !json {
        return render::data(&value, raw);
    }
    let mut object = Map::new();
    render::insert_bytes(&mut object, "value", &value);
    object.insert("version".into(), json!(version));
    object.insert("ttl_seconds".into(), json!(ttl));
    render::line(&Value::Object(object).to_string())
}

fn keys(session: &Session, cache: &str, limit: Option<u64>, format: KeyFormat, json: bool) -> Result<(), Failure> {
    let (mut lines, mut left, mut cursor) = (Lines::new(), limit.unwrap_or(u64::MAX), None);
    while left > 0 {
        let (page, next) = session.cache_keys(cache, left.min(PAGE_KEYS), cursor.as_deref())?;
        left -= (page.len() as u64).min(left);
        for key in page {
            let mut object = Map::new();
            render::insert_bytes(&mut object, "key", &key);
            lines.line(&if json { Value::Object(object).to_string() } else { format.show(&key) })?;
        }
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    lines.flush()
}

fn percent(ratio: &Value) -> String {
    ratio.as_f64().map_or_else(|| "-".to_owned(), |ratio| format!("{:.1} %", 100.0 * ratio))
}

fn list(all: &[Value], json: bool) -> Result<(), Failure> {
    if json {
        return all.iter().try_for_each(|cache| render::line(&cache.to_string()));
    }
    if all.is_empty() {
        render::note("no caches yet: `thalweg cache put CACHE KEY VALUE` creates one");
        return Ok(());
    }
    let number = |cache: &Value, name: &str| cache[name].as_u64().unwrap_or_default();
    let rows = all.iter().map(|cache| {
        vec![
            cache["name"].as_str().unwrap_or_default().to_owned(),
            render::count(number(cache, "entries")),
            render::bytes(number(cache, "bytes")),
            render::bytes(number(cache, "max_bytes")),
            percent(&cache["hit_ratio"]),
            render::count(number(cache, "evictions")),
        ]
    });
    render::line(&render::table(&["cache", "entries", "bytes", "at most", "hits", "evictions"], rows))
}

fn show(stats: &Value, json: bool) -> Result<(), Failure> {
    print_result(stats, json, || {
        let rows = leaves("", stats).into_iter().map(|(name, value)| {
            let text = if name == "hit_ratio" { percent(&value) } else { shown(&name, &value) };
            vec![words(without_unit(&name)), text]
        });
        render::table(&["figure", ""], rows)
    })
}
