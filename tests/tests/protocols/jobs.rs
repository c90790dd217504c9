//! Jobs of workers that take them from Redis: their number and names against what the library itself counts, the parents of
//! their calls, and the link to the request that put each into its queue.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::go::unpacked;
use tracer_tests::http::Connection;
use tracer_tests::process::Process;
use tracer_tests::redis::{Client, Redis, Value};
use tracer_tests::spans::{Span, Tail};
use tracer_tests::workload::{Server, source};
use tracer_tests::{begin, figure, find, say, scratch, wait};

/// Jobs put into queues.
const JOBS: usize = 60;

type Counts = BTreeMap<String, usize>;

/// The programs of one library.
struct Library {
    name: &'static str,
    /// Serves requests that put jobs into queues.
    producer: fn() -> Command,
    worker: fn(&Redis) -> Command,
    /// What the library says of the jobs that were done, by class; `log`: of the worker.
    done: fn(&mut Client, &str) -> Counts,
    /// Whether a job is put into the queue only when the one before it is done.
    singly: bool,
    /// At least so many of its jobs are seen, so many of their calls are below them, and so many of those are linked.
    jobs_seen: usize,
    calls_right: usize,
    linked: usize,
}

const RQ: Library = Library {
    name: "rq",
    producer: || {
        let mut command = Command::new(find("python3").expect("python3"));
        command.arg("-u").arg(source("jobs_rq.py"));
        command
    },
    worker: |redis| {
        let mut command = Command::new(find("rq").expect("rq"));
        let workloads = source("jobs_rq.py").parent().map(Path::to_path_buf).unwrap_or_default();
        let address = format!("redis://{}", redis.address);
        command.args(["worker", "-u", &address, "reports"]).env("PYTHONPATH", workloads);
        command
    },
    done: |client, _| {
        let mut counts = Counts::new();
        let Value::Array(Some(ids)) = client.ask(&["ZRANGE", "rq:finished:reports", "0", "-1"]) else { return counts };
        for id in ids {
            let Value::Text(Some(id)) = id else { panic!("{id:?}") };
            let Value::Text(Some(description)) = client.ask(&["HGET", &format!("rq:job:{id}"), "description"]) else {
                panic!("no description of {id}");
            };
            let function = description.split('(').next().unwrap_or_default();
            *counts.entry(format!("process reports {function}")).or_default() += 1;
        }
        counts
    },
    singly: false,
    jobs_seen: JOBS,
    calls_right: JOBS * 9 / 10,
    linked: JOBS * 8 / 10,
};

const SIDEKIQ: Library = Library {
    name: "sidekiq",
    producer: || {
        let mut command = Command::new(find("ruby").expect("ruby"));
        command.arg(source("jobs_sidekiq.rb")).arg("serve");
        command
    },
    worker: |_| {
        let mut command = Command::new(find("sidekiq").expect("sidekiq"));
        command.arg("-r").arg(source("jobs_sidekiq.rb")).args(["-c", "3", "-q", "default", "-q", "mailers"]);
        command
    },
    done: |_, log| {
        let mut counts = Counts::new();
        for line in log.lines().filter(|line| line.ends_with("INFO: done")) {
            let class = line.split(' ').find_map(|word| word.strip_prefix("class=")).unwrap_or_default();
            let queue = if class == "Report" { "default" } else { "mailers" };
            *counts.entry(format!("process {queue} {class}")).or_default() += 1;
        }
        counts
    },
    singly: false,
    jobs_seen: JOBS,
    calls_right: JOBS * 9 / 10,
    linked: JOBS * 8 / 10,
};

/// Where the library of Node.js is that `cargo xtask test` unpacks.
fn bullmq() -> &'static str {
    unpacked("bullmq-", "node_modules/bullmq/package.json")
}

fn with_bullmq(what: &str) -> Command {
    let mut command = Command::new(find("node").expect("node"));
    let modules = Path::new(bullmq()).ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default();
    command.arg(source("jobs_bullmq.js")).arg(what).env("NODE_PATH", modules);
    command
}

const BULLMQ: Library = Library {
    name: "bullmq",
    producer: || with_bullmq("serve"),
    worker: |_| with_bullmq("work"),
    done: |client, _| {
        let mut counts = Counts::new();
        let Value::Array(Some(ids)) = client.ask(&["ZRANGE", "bull:reports:completed", "0", "-1"]) else {
            return counts;
        };
        for id in ids {
            let Value::Text(Some(id)) = id else { panic!("{id:?}") };
            let Value::Text(Some(name)) = client.ask(&["HGET", &format!("bull:reports:{id}"), "name"]) else {
                panic!("no name of {id}");
            };
            *counts.entry(format!("process reports {name}")).or_default() += 1;
        }
        counts
    },
    // Where the next one waits already, it comes with the end of the one before: their calls are ambiguous.
    singly: true,
    // The replies of the two scripts that take a job are not read where the scripts are sent whole, once each.
    jobs_seen: JOBS - 2,
    calls_right: JOBS / 4,
    linked: JOBS / 4,
};

/// What became of a library's jobs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// Calls below the right job, below another one, and below none.
    right: usize,
    wrong: usize,
    none: usize,
    /// Jobs linked to the request that put them there, to another one, and to none.
    linked: usize,
    mislinked: usize,
    unlinked: usize,
}

/// The name and the number of a job in the path of its call.
fn named(path: &str) -> Option<(&str, &str)> {
    let (name, rest) = path.strip_prefix("/b/")?.split_once('/')?;
    Some((name, rest.split_once('/')?.0))
}

fn compare(spans: &[Span], worker: &str) -> (Counts, Found) {
    let mut counts = Counts::new();
    let jobs: HashMap<&str, &Span> =
        spans.iter().filter(|span| span.protocol == "job").map(|span| (span.id.as_str(), span)).collect();
    for job in jobs.values() {
        assert_eq!(job.service, worker, "{job:?}");
        *counts.entry(job.class.clone()).or_default() += 1;
    }
    let pushes: HashMap<&str, &Span> = spans
        .iter()
        .filter(|span| span.server && span.path.starts_with("/push/"))
        .filter_map(|span| Some((span.path.rsplit('/').next()?, span)))
        .collect();
    let mut found = Found::default();
    for call in spans.iter().filter(|span| !span.server && span.path.starts_with("/b/")) {
        let (name, number) = named(&call.path).unwrap_or_else(|| panic!("{call:?}"));
        let Some(job) = call.parent.as_deref().and_then(|parent| jobs.get(parent)) else {
            say(&format!("no parent: {} {}, {}", call.grade, call.path, call.evidence));
            found.none += 1;
            continue;
        };
        if !job.class.ends_with(name) || call.trace != job.trace {
            say(&format!("wrong: {call:?} below {job:?}"));
            found.wrong += 1;
            continue;
        }
        found.right += 1;
        match job.links.as_slice() {
            [] => found.unlinked += 1,
            [trace] if pushes.get(number).is_some_and(|push| push.trace == *trace) => found.linked += 1,
            _ => found.mislinked += 1,
        }
    }
    (counts, found)
}

fn judge(library: &Library) {
    let dir = scratch();
    let (redis, upstream) = (Redis::start(dir.path()), Server::c("origin", dir.path()));
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let mut tail = Tail::new(&agent.transactions);
    let service = format!("{}worker", library.name);
    let prepare = |mut command: Command| {
        command.env("REDIS_PORT", redis.address.port().to_string());
        command.env("UPSTREAM_PORT", upstream.address.port().to_string());
        command
    };
    let producer = Server::start("producer", dir.path(), &mut prepare((library.producer)()));
    let log = dir.path().join("worker.log");
    let mut worker = prepare((library.worker)(&redis));
    let mut worker = Process::start("worker", worker.env("OTEL_SERVICE_NAME", &service).current_dir(dir.path()), &log);
    let mut connection = Connection::open(producer.address).expect("the producer");
    let mut client = redis.client();
    for number in 0..JOBS {
        let reply = connection.ask("GET", &format!("/push/{number}")).expect("a reply");
        assert_eq!(reply.status, 200);
        if library.singly {
            wait("a job to be done", Duration::from_secs(30), || {
                let done = (library.done)(&mut client, &worker.output());
                (done.values().sum::<usize>() > number).then_some(())
            });
        }
    }
    let done = wait("the library to have done all jobs", Duration::from_secs(60), || {
        let counts = (library.done)(&mut client, &worker.output());
        (counts.values().sum::<usize>() == JOBS).then_some(counts)
    });
    worker.signal(libc::SIGTERM);
    worker.wait(Duration::from_secs(30));
    let is_job = |span: &Span| span.protocol == "job";
    let seen = tail.until(library.jobs_seen, Duration::from_secs(30), is_job);
    let classes = compare(&tail.spans, &service).0;
    assert!(seen >= library.jobs_seen, "{classes:?} of {done:?}; lost: {:?}", agent.metrics().lost());
    let is_call = |span: &Span| !span.server && span.path.starts_with("/b/");
    assert_eq!(tail.until(JOBS, Duration::from_secs(30), is_call), JOBS);
    let (counts, found) = compare(&tail.spans, &service);
    say(&format!("{}: {counts:?}, {found:?}", library.name));
    figure(&format!("jobs_{}", library.name), &format!("{} of {JOBS} calls, {} linked", found.right, found.linked));
    let seen = counts.values().sum::<usize>();
    assert!(
        counts.iter().all(|(class, count)| done.get(class).is_some_and(|jobs| jobs >= count)),
        "{counts:?} of {done:?}"
    );
    assert!((library.jobs_seen..=JOBS).contains(&seen), "{counts:?} of {done:?}");
    assert_eq!((found.wrong, found.mislinked), (0, 0));
    assert!(found.right >= library.calls_right && found.linked >= library.linked, "{found:?}");
    let text = std::fs::read_to_string(&agent.transactions).expect("spans");
    assert!(!text.contains("planted-value"), "arguments show");
    agent.stop();
}

#[test]
fn jobs_of_rq() {
    let Some(_turn) = begin("jobs_rq", &["python3", "rq", "cc", "redis-server"]) else { return };
    judge(&RQ);
}

#[test]
fn jobs_of_sidekiq() {
    let Some(_turn) = begin("jobs_sidekiq", &["ruby", "sidekiq", "cc", "redis-server"]) else { return };
    judge(&SIDEKIQ);
}

#[test]
fn jobs_of_bullmq() {
    let Some(_turn) = begin("jobs_bullmq", &["node", bullmq(), "cc", "redis-server"]) else { return };
    judge(&BULLMQ);
}
