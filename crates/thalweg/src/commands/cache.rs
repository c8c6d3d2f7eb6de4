//! `cache`: bounded maps in a server's memory.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use thalweg_types::command::Deadline;

use super::{kv::bytes_or_stdin, parse_key, time::parse_ttl};
use crate::{
    cli::KeyFormat,
    failure::{Exit, Failure},
    render::{self, Lines},
    span::parse_bytes,
    target::{
        ServerPlace,
        caches::{Caches, Entry, Expected},
    },
};

/// Number of keys requested per page.
const PAGE_KEYS: u64 = 10_000;

#[derive(Subcommand, Debug)]
pub enum Cache {
    /// List caches with their figures
    List(Plain),
    /// Create a cache; one that exists is left as it is. The first put also creates one
    Create {
        /// The cache
        cache: String,
        /// The most that it holds [default: as the server is configured]
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
        max_bytes: Option<u64>,
        #[command(flatten)]
        place: ServerPlace,
    },
    /// Show how a cache does: entries, bytes, hits, misses, evictions
    Stats(Named),
    /// Forget all entries of a cache
    Clear(Named),
    /// Drop a cache with all that is in it
    Drop(Named),
    /// Print an entry's value, byte for byte; ends with 3 if there is none
    Get(Key),
    /// Put an entry
    Put(Put),
    /// Remove an entry
    #[command(visible_alias = "delete")]
    Del {
        #[command(flatten)]
        key: Key,
        /// Only if it is of this version
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
    /// Change until when an entry lives, and nothing else
    Touch {
        #[command(flatten)]
        key: Key,
        /// How long it lives from now on: a span such as 30s, or never
        #[arg(long, value_name = "TTL", value_parser = super::time::parse_touch)]
        ttl: Deadline,
    },
    /// Add to a counter, and print what it is then
    Incr {
        #[command(flatten)]
        key: Key,
        /// How much
        #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
        /// How long it lives [default: as long as before]
        #[arg(long, value_name = "TTL", value_parser = parse_ttl)]
        ttl: Option<Deadline>,
    },
    /// List keys, in no order
    Keys {
        /// The cache
        cache: String,
        /// At most so many
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// How keys are shown
        #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
        key_format: KeyFormat,
        #[command(flatten)]
        place: ServerPlace,
    },
}

#[derive(Args, Debug)]
pub struct Plain {
    #[command(flatten)]
    pub place: ServerPlace,
}

#[derive(Args, Debug)]
pub struct Named {
    /// The cache
    pub cache: String,
    #[command(flatten)]
    pub place: ServerPlace,
}

#[derive(Args, Debug)]
pub struct Key {
    /// The cache
    pub cache: String,
    /// The key
    pub key: String,
    /// How the key is typed
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub key_format: KeyFormat,
    #[command(flatten)]
    pub place: ServerPlace,
}

impl Key {
    fn bytes(&self) -> Result<Vec<u8>, Failure> {
        parse_key(&self.key, self.key_format)
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  thalweg cache put sessions ada token --ttl 30m\n  \
                        thalweg cache put pages / - < index.html\n  thalweg cache put sessions ada new --if-version 7")]
pub struct Put {
    #[command(flatten)]
    pub key: Key,
    /// The value; `-` or nothing reads stdin
    pub value: Option<String>,
    /// How long it lives: a span such as 30s, never, or keep (as the value before) [default: until it is evicted]
    #[arg(long, value_name = "TTL", value_parser = parse_ttl)]
    pub ttl: Option<Deadline>,
    /// Only if there is no such entry
    #[arg(long, group = "condition")]
    pub if_absent: bool,
    /// Only if there is such an entry
    #[arg(long, group = "condition")]
    pub if_present: bool,
    /// Only if it is of this version
    #[arg(long, value_name = "N", group = "condition")]
    pub if_version: Option<u64>,
}

impl Cache {
    /// Returns the server, which each subcommand names.
    pub fn place(&self) -> &ServerPlace {
        match self {
            Self::List(Plain { place }) | Self::Create { place, .. } | Self::Keys { place, .. } => place,
            Self::Stats(named) | Self::Clear(named) | Self::Drop(named) => &named.place,
            Self::Get(key) | Self::Del { key, .. } | Self::Touch { key, .. } | Self::Incr { key, .. } => &key.place,
            Self::Put(put) => &put.key.place,
        }
    }
}

pub fn run(command: &Cache) -> Result<(), Failure> {
    let (http, json) = (command.place().http()?, command.place().json);
    let caches = Caches(&http);
    match command {
        Cache::List(_) => list(&caches.list()?, json),
        Cache::Create { cache, max_bytes, .. } => {
            let (shown, created) = caches.create(cache, *max_bytes)?;
            let most = render::bytes(shown["max_bytes"].as_u64().unwrap_or_default());
            let text = if created { format!("created, holds {most}") } else { format!("exists, holds {most}") };
            said(&text, &shown, json)
        }
        Cache::Stats(named) => stats(&caches.stats(&named.cache)?, json),
        Cache::Clear(named) => {
            caches.clear(&named.cache)?;
            said("ok, empty", &json!({ "cache": named.cache }), json)
        }
        Cache::Drop(named) => {
            caches.drop_cache(&named.cache)?;
            said("ok, dropped", &json!({ "cache": named.cache }), json)
        }
        Cache::Get(key) => get(&caches, key, json),
        Cache::Put(put) => {
            let expected = match (put.if_absent, put.if_present, put.if_version) {
                (true, ..) => Expected::Absent,
                (_, true, _) => Expected::Present,
                (.., Some(version)) => Expected::Version(version),
                _ => Expected::Anything,
            };
            let value = bytes_or_stdin(put.value.as_deref())?;
            let version = caches.put(&put.key.cache, &put.key.bytes()?, &value, put.ttl, expected)?;
            said(&format!("ok, version {version}"), &json!({ "version": version }), json)
        }
        Cache::Del { key, if_version } => {
            caches.delete(&key.cache, &key.bytes()?, if_version.map_or(Expected::Anything, Expected::Version))?;
            said("ok", &json!({}), json)
        }
        Cache::Touch { key, ttl } => {
            caches.touch(&key.cache, &key.bytes()?, *ttl)?;
            said("ok", &json!({}), json)
        }
        Cache::Incr { key, by, ttl } => {
            let value = caches.add(&key.cache, &key.bytes()?, *by, *ttl)?;
            said(&value.to_string(), &json!({ "value": value }), json)
        }
        Cache::Keys { cache, limit, key_format, .. } => keys(&caches, cache, *limit, *key_format, json),
    }
}

fn said(text: &str, object: &Value, json: bool) -> Result<(), Failure> {
    if json { render::line(&object.to_string()) } else { render::line(text) }
}

fn get(caches: &Caches<'_>, key: &Key, json: bool) -> Result<(), Failure> {
    let Some(Entry { value, version, ttl }) = caches.get(&key.cache, &key.bytes()?)? else {
        let message = format!("there is no key {:?} in cache {:?}", key.key, key.cache);
        return Err(Failure::new(Exit::NotFound, "not_found", message)
            .then("it was never put, has ended, had to go for others, or the server has started anew"));
    };
    if !json {
        return render::out(&value);
    }
    let mut object = Map::new();
    render::insert_bytes(&mut object, "value", &value);
    object.insert("version".into(), json!(version));
    object.insert("ttl_seconds".into(), json!(ttl));
    render::line(&Value::Object(object).to_string())
}

fn keys(caches: &Caches<'_>, cache: &str, limit: Option<u64>, format: KeyFormat, json: bool) -> Result<(), Failure> {
    let (mut lines, mut left, mut cursor) = (Lines::new(), limit.unwrap_or(u64::MAX), None);
    while left > 0 {
        let (page, next) = caches.keys(cache, left.min(PAGE_KEYS), cursor.as_deref())?;
        left -= (page.len() as u64).min(left);
        for key in page {
            let text = match (json, format) {
                (true, _) => {
                    let mut object = Map::new();
                    render::insert_bytes(&mut object, "key", &key);
                    Value::Object(object).to_string()
                }
                (false, KeyFormat::Text) => render::one_line(&key),
                (false, KeyFormat::Hex) => key.iter().map(|byte| format!("{byte:02x}")).collect(),
            };
            lines.line(&text)?;
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

fn stats(shown: &Value, json: bool) -> Result<(), Failure> {
    if json {
        return render::line(&shown.to_string());
    }
    let rows = render::flatten(shown).into_iter().map(|(name, value)| match &*name {
        "hit_ratio" => vec![name, percent(&shown["hit_ratio"])],
        _ => vec![name, value],
    });
    render::line(&render::table(&["figure", ""], rows))
}
