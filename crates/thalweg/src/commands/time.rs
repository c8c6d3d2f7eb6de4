//! `ttl`, `touch`, `lease`: show and change the lifetime of keys.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use thalweg_types::{LeaseId, command::Deadline};

use super::{parse_key, with_target};
use crate::{
    cli::{KeyArgs, Plain},
    failure::{Exit, Failure},
    render,
    span::{parse_span, show_span, show_time},
    target::{Access, Place},
};

#[derive(Args, Debug)]
#[command(after_help = "Prints what is left of the key's time, or `forever`.\n\n\
                        Examples:\n  thalweg ttl sessions ada\n  thalweg ttl sessions ada --json\n\n\
                        Ends with 3 if there is no such key.")]
pub struct Ttl {
    #[command(flatten)]
    pub key: KeyArgs,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Args, Debug)]
#[command(after_help = "The value, its revision and its lease stay as they are.\n\n\
                        Examples:\n  thalweg touch sessions ada 30m\n  thalweg touch sessions ada never\n\n\
                        Ends with 3 if there is no such key.")]
pub struct Touch {
    #[command(flatten)]
    pub key: KeyArgs,
    /// How long it lives from now on: a span such as 30s, never, or default (as the keyspace says)
    #[arg(value_name = "TTL", value_parser = parse_touch)]
    pub ttl: Deadline,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Subcommand, Debug)]
#[command(
    after_help = "A lease ends when it is revoked or not kept alive for its TTL. The keys that were put with it\n\
                        (`thalweg put --lease ID`) are gone with it, at once.\n\n\
                        Examples:\n  thalweg lease grant 30s\n  thalweg put members ada here --lease 4096\n  \
                        thalweg lease keep-alive 4096\n  thalweg lease revoke 4096\n\n\
                        Ends with 3 if there is no such lease, or it has ended."
)]
pub enum Lease {
    /// Grant a lease, and print its id
    Grant {
        /// How long it lives without being kept alive
        #[arg(value_name = "TTL", value_parser = parse_span)]
        ttl: Duration,
        /// Its id [default: the node chooses one]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        id: Option<u64>,
        #[command(flatten)]
        place: Place,
    },
    /// List all that have not ended
    List(Plain),
    /// Show one and its keys
    Show(OfLease),
    /// Let it live for another TTL from now on
    KeepAlive(OfLease),
    /// End it, and with it its keys
    Revoke(OfLease),
}

#[derive(Args, Debug)]
pub struct OfLease {
    /// Its id
    #[arg(value_name = "ID")]
    pub id: u64,
    #[command(flatten)]
    pub place: Place,
}

impl Lease {
    /// Returns the server or directory, which each subcommand names.
    pub fn place(&self) -> &Place {
        match self {
            Self::Grant { place, .. } => place,
            Self::List(plain) => &plain.place,
            Self::Show(of) | Self::KeepAlive(of) | Self::Revoke(of) => &of.place,
        }
    }
}

/// Parses a span, `never`, `default` or `keep`.
pub fn parse_ttl(text: &str) -> Result<Deadline, String> {
    match text {
        "never" => Ok(Deadline::Never),
        "default" => Ok(Deadline::Default),
        "keep" => Ok(Deadline::Keep),
        span => parse_span(span).map(Deadline::After).map_err(|error| format!("{error}, never, default or keep")),
    }
}

pub fn parse_touch(text: &str) -> Result<Deadline, String> {
    match parse_ttl(text) {
        Ok(Deadline::Keep) => Err("a touch that keeps the deadline does nothing".to_owned()),
        parsed => parsed,
    }
}

fn no_such_key(key: &KeyArgs) -> Failure {
    let message = format!("there is no key {:?} in keyspace {:?}", key.key, key.keyspace);
    Failure::new(Exit::NotFound, "not_found", message)
        .then(format!("`thalweg scan {}` lists what is there", key.keyspace))
}

pub fn ttl(args: &Ttl) -> Result<(), Failure> {
    let key = parse_key(&args.key.key, args.key.key_format)?;
    let life = with_target(&args.place, Access::Read, |target| target.lifetime(&args.key.keyspace, &key))?;
    let life = life.ok_or_else(|| no_such_key(&args.key))?;
    if args.place.json {
        let object = json!({
            "revision": life.revision,
            "remaining_seconds": life.remaining.map(|left| left.as_secs_f64()),
            "lease": life.lease.map(|lease| lease.0),
        });
        return render::line(&object.to_string());
    }
    let left = life.remaining.map_or("forever".to_owned(), show_span);
    let lease = life.lease.map_or(String::new(), |lease| format!(", lease {lease}"));
    render::line(&format!("{left}{lease}"))
}

pub fn touch(args: &Touch) -> Result<(), Failure> {
    let key = parse_key(&args.key.key, args.key.key_format)?;
    let touched = with_target(&args.place, Access::Read, |target| target.touch(&args.key.keyspace, &key, args.ttl))?;
    if !touched {
        return Err(no_such_key(&args.key));
    }
    render::line(if args.place.json { r#"{"touched":true}"# } else { "ok" })
}

pub fn lease(args: &Lease) -> Result<(), Failure> {
    let place = args.place();
    match args {
        Lease::Grant { ttl, id, .. } => {
            let id = id.map(LeaseId);
            let granted = with_target(place, Access::Write, |target| target.grant_lease(id, *ttl)).map_err(advised)?;
            render::line(&if place.json { granted.to_string() } else { granted["id"].to_string() })
        }
        Lease::List(_) => list(place),
        Lease::Show(of) => {
            let found = with_target(place, Access::Read, |target| target.lease(LeaseId(of.id))).map_err(advised)?;
            show(&found, place.json)
        }
        Lease::KeepAlive(of) => {
            let kept = with_target(place, Access::Read, |target| target.keep_lease(LeaseId(of.id))).map_err(advised)?;
            if place.json {
                return render::line(&kept.to_string());
            }
            render::line(&format!("ok, it lives for another {}", seconds(&kept["ttl_seconds"])))
        }
        Lease::Revoke(of) => {
            with_target(place, Access::Read, |target| target.revoke_lease(LeaseId(of.id))).map_err(advised)?;
            let words = format!("ok, lease {} and its keys are gone", of.id);
            render::line(&if place.json { json!({ "revoked": of.id }).to_string() } else { words })
        }
    }
}

fn advised(failure: Failure) -> Failure {
    match &*failure.code {
        "no_such_lease" => failure.then("`thalweg lease list` lists what is there; `thalweg lease grant` grants one"),
        _ => failure,
    }
}

fn list(place: &Place) -> Result<(), Failure> {
    let leases = with_target(place, Access::Read, |target| target.leases())?;
    if place.json {
        return leases.iter().try_for_each(|lease| render::line(&lease.to_string()));
    }
    if leases.is_empty() {
        render::note("no leases: `thalweg lease grant TTL` grants one");
        return Ok(());
    }
    let rows = leases.iter().map(|lease| {
        vec![
            lease["id"].to_string(),
            seconds(&lease["ttl_seconds"]),
            seconds(&lease["remaining_seconds"]),
            format!("about {}", lease["about_keys"]),
        ]
    });
    render::line(&render::table(&["lease", "ttl", "left", "keys"], rows))
}

fn show(lease: &Value, json: bool) -> Result<(), Failure> {
    if json {
        return render::line(&lease.to_string());
    }
    let ends = lease["deadline_micros"].as_u64().map_or("-".to_owned(), show_time);
    let (ttl, left) = (seconds(&lease["ttl_seconds"]), seconds(&lease["remaining_seconds"]));
    render::line(&format!("lease {}: {left} left of {ttl}, until {ends} unless it is kept alive", lease["id"]))?;
    for key in lease["keys"].as_array().into_iter().flatten() {
        let bytes = key.as_object().and_then(|key| render::take_bytes(key, "key")).unwrap_or_default();
        let keyspace = key["keyspace"].as_str().unwrap_or_default();
        render::line(&format!("{keyspace}\t{}", render::one_line(&bytes)))?;
    }
    if lease["more"] == json!(true) {
        render::note("there are more keys");
    }
    Ok(())
}

fn seconds(value: &Value) -> String {
    let span = value.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    span.map_or("-".to_owned(), show_span)
}
