//! `ttl`, `touch`, `lease`: show and change the lifetime of keys.
//!
//! Owns: the arguments and the output of these commands, and the notation of lifetimes, which other commands use too.
//! Does not own: the requests (`session/leases`).

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use thalweg_types::{LeaseId, command::Deadline};

use crate::{
    args::{KeyArgs, Plain, TargetArgs},
    failure::Failure,
    render,
    session::{Access, Session},
    span::{parse_span, show_span, show_time},
};

#[derive(Args, Debug)]
#[command(after_help = "Prints the remaining lifetime of the key, or `forever`.\n\n\
                        Examples:\n  thalweg ttl sessions ada\n  thalweg ttl sessions ada --json\n\n\
                        Ends with 3 if the key does not exist.")]
pub(crate) struct Ttl {
    #[command(flatten)]
    pub key: KeyArgs,
    #[command(flatten)]
    pub place: TargetArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "The value, its revision and its lease do not change.\n\n\
                        Examples:\n  thalweg touch sessions ada 30m\n  thalweg touch sessions ada never\n\n\
                        Ends with 3 if the key does not exist.")]
pub(crate) struct Touch {
    #[command(flatten)]
    pub key: KeyArgs,
    /// New lifetime of the key from now on: a span such as 30s, never, or default (that of the keyspace)
    #[arg(value_name = "TTL", value_parser = parse_touch)]
    pub ttl: Deadline,
    #[command(flatten)]
    pub place: TargetArgs,
}

#[derive(Subcommand, Debug)]
#[command(
    after_help = "A lease ends when it is revoked, or when it was not kept alive for its TTL. The keys that were put with it\n\
                        (`thalweg put --lease ID`) disappear together with it.\n\n\
                        Examples:\n  thalweg lease grant 30s\n  thalweg put members ada here --lease 4096\n  \
                        thalweg lease keep-alive 4096\n  thalweg lease revoke 4096\n\n\
                        Ends with 3 if the lease does not exist or has ended."
)]
pub(crate) enum Lease {
    /// Grant a lease, and print its id
    Grant {
        /// Time after which the lease ends unless it is kept alive
        #[arg(value_name = "TTL", value_parser = parse_span)]
        ttl: Duration,
        /// Id of the lease [default: the node chooses one]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        id: Option<u64>,
        #[command(flatten)]
        place: TargetArgs,
    },
    /// List all active leases
    List(Plain),
    /// Show a lease and its keys
    Show(LeaseArgs),
    /// Extend a lease by its TTL from now on
    KeepAlive(LeaseArgs),
    /// End a lease and delete its keys
    Revoke(LeaseArgs),
}

#[derive(Args, Debug)]
pub(crate) struct LeaseArgs {
    /// Id of the lease
    #[arg(value_name = "ID")]
    pub id: u64,
    #[command(flatten)]
    pub place: TargetArgs,
}

impl Lease {
    /// Returns the options that name the server or the directory. Each subcommand has these options.
    pub(crate) fn place(&self) -> &TargetArgs {
        match self {
            Self::Grant { place, .. } => place,
            Self::List(plain) => &plain.place,
            Self::Show(of) | Self::KeepAlive(of) | Self::Revoke(of) => &of.place,
        }
    }
}

/// Parses the lifetime of a key: a span of time, `never`, `default` or `keep`.
pub(crate) fn parse_ttl(text: &str) -> Result<Deadline, String> {
    match text {
        "never" => Ok(Deadline::Never),
        "default" => Ok(Deadline::Default),
        "keep" => Ok(Deadline::Keep),
        span => parse_span(span).map(Deadline::After).map_err(|error| format!("{error}, never, default or keep")),
    }
}

pub(crate) fn parse_touch(text: &str) -> Result<Deadline, String> {
    match parse_ttl(text) {
        Ok(Deadline::Keep) => Err("keep has no effect here: use a span, never or default".to_owned()),
        parsed => parsed,
    }
}

pub(crate) fn ttl(args: &Ttl) -> Result<(), Failure> {
    let key = args.key.bytes()?;
    let life = Session::with(&args.place, Access::Read, |session| session.lifetime(&args.key.keyspace, &key))?;
    let life = life.ok_or_else(|| args.key.missing())?;
    let object = json!({
        "revision": life.revision,
        "remaining_seconds": life.remaining.map(|left| left.as_secs_f64()),
        "lease": life.lease.map(|lease| lease.0),
    });
    render::print_result(&object, args.place.json, || {
        let left = life.remaining.map_or("forever".to_owned(), show_span);
        format!("{left}{}", life.lease.map_or(String::new(), |lease| format!(", lease {lease}")))
    })
}

pub(crate) fn touch(args: &Touch) -> Result<(), Failure> {
    let key = args.key.bytes()?;
    let touched =
        Session::with(&args.place, Access::Read, |session| session.touch(&args.key.keyspace, &key, args.ttl))?;
    if !touched {
        return Err(args.key.missing());
    }
    render::print_result(&json!({ "touched": true }), args.place.json, || "ok".to_owned())
}

pub(crate) fn lease(args: &Lease) -> Result<(), Failure> {
    let place = args.place();
    match args {
        Lease::Grant { ttl, id, .. } => {
            let id = id.map(LeaseId);
            let granted = Session::with(place, Access::Write, |session| session.grant_lease(id, *ttl))?;
            render::print_result(&granted, place.json, || granted["id"].to_string())
        }
        Lease::List(_) => list(place),
        Lease::Show(of) => {
            let found = Session::with(place, Access::Read, |session| session.lease(LeaseId(of.id)))?;
            show(&found, place.json)
        }
        Lease::KeepAlive(of) => {
            let kept = Session::with(place, Access::Read, |session| session.keep_lease(LeaseId(of.id)))?;
            render::print_result(&kept, place.json, || format!("ok, extended by {}", seconds(&kept["ttl_seconds"])))
        }
        Lease::Revoke(of) => {
            Session::with(place, Access::Read, |session| session.revoke_lease(LeaseId(of.id)))?;
            let text = || format!("ok, lease {} and its keys are gone", of.id);
            render::print_result(&json!({ "revoked": of.id }), place.json, text)
        }
    }
}

fn list(place: &TargetArgs) -> Result<(), Failure> {
    let leases = Session::with(place, Access::Read, Session::leases)?;
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
    render::line(&format!("lease {}: {left} of {ttl} left, ends at {ends} unless it is kept alive", lease["id"]))?;
    let keys = lease["keys"].as_array().map_or(&[][..], Vec::as_slice);
    if !keys.is_empty() {
        let rows = keys.iter().map(|key| {
            let bytes = key.as_object().and_then(|key| render::take_bytes(key, "key")).unwrap_or_default();
            vec![key["keyspace"].as_str().unwrap_or_default().to_owned(), render::one_line(&bytes)]
        });
        render::line(&format!("\n{}", render::table(&["keyspace", "key"], rows)))?;
    }
    if lease["more"] == json!(true) {
        render::note("the lease has more keys");
    }
    Ok(())
}

fn seconds(value: &Value) -> String {
    let span = value.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    span.map_or("-".to_owned(), show_span)
}
