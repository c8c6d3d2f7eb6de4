//! Lets the load generator send its requests over RESP: implements the generator's trait `Protocol`.

use thalweg_redis::wire::reply_parser::whole;

use super::{
    client::{Client, Greeting},
    requests::{Mix, ReplyFault, Requests},
};
use crate::{BadReply, Batching, BenchError, Connection, Decoded, OnLoss, Protocol, Tally, random::Generator};

/// The load generator's protocol for requests to one RESP server.
#[derive(Clone, Debug)]
pub struct Resp {
    /// Server address, password and database with which each connection begins.
    pub greeting: Greeting,
    /// Builder of requests, which also checks replies.
    pub requests: Requests,
    /// Operations, with the weights of their random choice.
    pub mix: Mix,
    /// Reaction to a wrong reply: the benchmark run ends, or the reply is counted.
    pub on_wrong: OnWrong,
}

/// Reaction of the load generator to a wrong reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnWrong {
    /// The benchmark run ends with an error.
    Stop,
    /// The wrong reply is counted, and the benchmark run continues.
    Count,
    /// An error reply is counted, and the benchmark run continues. Any other wrong reply ends the run with an error.
    CountRefusals,
}

/// Parameters of a run over RESP.
pub type Plan = crate::Plan<Resp>;

/// Results of a run over RESP.
pub type Outcome = crate::Outcome<()>;

impl Protocol for Resp {
    /// A request: the position of its operation in the mix, and the index of its key.
    type Request = (usize, u64);
    type Reply = ();
    type Fault = ReplyFault;
    /// State of a connection: the highest id of a stream entry in its replies so far.
    type State = (u64, u64);
    type Counts = ();

    const BATCHING: Batching = Batching::Burst;
    const ON_LOSS: OnLoss = OnLoss::End;

    fn connect(&self) -> Result<Connection, BenchError> {
        Client::open(&self.greeting)?.into_connection()
    }

    fn kinds(&self) -> usize {
        self.mix.operations().count()
    }

    #[inline]
    fn choose(&self, index: u64, rng: &mut Generator) -> (usize, u64) {
        (self.mix.choose(rng), index)
    }

    #[inline]
    fn kind((kind, _): (usize, u64)) -> usize {
        kind
    }

    #[inline]
    fn encode(&self, (kind, index): (usize, u64), out: &mut Vec<u8>) {
        self.requests.put(self.mix.operation(kind), index, out);
    }

    #[inline]
    fn decode(
        &self,
        (kind, index): (usize, u64),
        last_entry: &mut (u64, u64),
        bytes: &[u8],
    ) -> Result<Option<Decoded<()>>, BadReply<(), ReplyFault>> {
        let decoded = |bytes| Decoded { bytes, reply: (), closes: false };
        match self.requests.judge(self.mix.operation(kind), index, last_entry, bytes) {
            Ok(len) => Ok(len.map(decoded)),
            Err(fault) => {
                let is_reply = match (self.on_wrong, &fault) {
                    (OnWrong::Stop, _) | (_, ReplyFault::Protocol(_)) => false,
                    (OnWrong::Count, _) | (OnWrong::CountRefusals, ReplyFault::Refused { .. }) => true,
                    (OnWrong::CountRefusals, ReplyFault::Answer { .. }) => false,
                };
                let len = whole(bytes).ok().flatten().filter(|_| is_reply);
                Err(BadReply { fault, decoded: len.map(decoded) })
            }
        }
    }

    #[inline]
    fn count(&self, (): &mut (), (): (), _: Option<u64>) {}

    fn errors(&self, tally: &Tally<()>) -> Option<String> {
        let wrong = tally.wrong + tally.lost;
        (wrong > 0).then(|| format!("{wrong} wrong replies"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, data::Values, resp::requests::Operation};

    #[test]
    fn wrong_replies_end_the_run_or_are_counted() {
        let goes_on = |on_wrong, reply: &[u8]| {
            let address = Address::Tcp("127.0.0.1:1".parse().unwrap());
            let greeting = Greeting { address, password: None, database: 0, is_resp3: false };
            let requests = Requests::new(Values::new(10, 1), 5, "stream");
            let resp = Resp { greeting, requests, mix: Mix::only(Operation::Set), on_wrong };
            resp.decode((0, 0), &mut (0, 0), reply).unwrap_err().decoded.is_some()
        };
        let (refusal, wrong, garbage) = (&b"-ERR busy\r\n"[..], &b":7\r\n"[..], &b"?\r\n"[..]);
        let all = |on_wrong| [refusal, wrong, garbage].map(|reply| goes_on(on_wrong, reply));
        assert_eq!(all(OnWrong::Stop), [false, false, false]);
        assert_eq!(all(OnWrong::Count), [true, true, false]);
        assert_eq!(all(OnWrong::CountRefusals), [true, false, false]);
    }
}
