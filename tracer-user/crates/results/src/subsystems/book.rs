//! The book of one instance.

use std::sync::Arc;

use tracer_model::ClassId;
use tracer_transactions::process_costs::ProcessWork;

use super::own_figures::{OwnCommand, OwnFigures, OwnUser};
use super::{DatabaseSystem, Member, Role, Spent};

/// Limit of users with databases that have sums of their own.
const USERS: usize = 256;
/// The first users of every book: sessions whose user is not known, and users that found no room.
pub(super) const UNKNOWN: usize = 0;
const OTHER: usize = 1;
/// Least CPU by `/proc` for a ratio, nanoseconds.
const ENOUGH: u64 = 200_000_000;

/// Names of components that are not by title.
const REQUESTS: &str = "requests";
const CONNECTIONS: &str = "connection handling";
const WORKERS: &str = "parallel workers";
const ROOT: &str = "postmaster";
const PROGRAMS: &str = "started programs";
const OUTSIDE: &str = "outside requests";
const UNNAMED: &str = "unnamed";

/// Sums of a user with a database.
#[derive(Clone, Debug, Default)]
struct User {
    user: Box<str>,
    database: Box<str>,
    /// Of sessions that ended.
    spent: Spent,
    workers: u64,
    ended: u64,
    /// Sessions that run; only in views.
    running: u64,
}

impl User {
    fn new(user: &str, database: &str) -> Self {
        Self { user: user.into(), database: database.into(), ..Self::default() }
    }

    fn merge(&mut self, other: &Self) {
        self.spent.merge(&other.spent);
        self.workers += other.workers;
        self.ended += other.ended;
    }

    fn view(&self) -> UserView {
        let mut classes: Vec<(ClassId, f64)> =
            self.spent.classes.iter().map(|(class, cpu)| (*class, seconds(*cpu))).collect();
        classes.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        UserView {
            user: self.user.to_string(),
            database: self.database.to_string(),
            cpu_s: seconds(self.spent.cpu() + self.workers),
            requests_s: seconds(self.spent.requests),
            workers_s: seconds(self.workers),
            connection_s: seconds(self.spent.other),
            sessions: self.running,
            ended: self.ended,
            classes,
        }
    }
}

/// What is known of one instance.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) system: DatabaseSystem,
    /// Its first process; 0: it ended.
    pub(super) root: u32,
    pub(super) service: Arc<str>,
    /// Where its data is, once known.
    pub(super) place: Option<String>,
    /// CPU of all its processes so far, nanoseconds.
    pub(super) cpu: u64,
    /// What its processes had used before they were known, by `/proc`, nanoseconds.
    pub(super) before: u64,
    /// Users that found no room.
    pub(super) refused: u64,
    users: Vec<User>,
    /// CPU of processes that ended, by component, without sessions.
    components: Vec<(&'static str, u64)>,
    /// By `/proc` and by this book: at the first check, and at the last.
    first: Option<(u64, u64)>,
    last: (u64, u64),
    /// Sums of earlier runs of the same instance: by `/proc`, and by this book.
    earlier: (u64, u64),
    own: Option<OwnRecord>,
}

/// What a server says of itself, and this book's figures of the same moments.
#[derive(Debug)]
struct OwnRecord {
    /// CPU by the server, if it counts that, and by this book: when it was asked first, and last.
    cpu: Option<[(u64, u64); 2]>,
    commands: Vec<OwnCommand>,
    users: Vec<OwnUser>,
}

/// A book as the API and metrics show it. CPU in seconds.
#[derive(Clone, Debug, Default)]
pub struct BookView {
    /// Kind of subsystem.
    pub system: &'static str,
    /// Its service.
    pub service_name: Arc<str>,
    /// Directory of its data; empty if not known.
    pub instance: String,
    /// Its first process; 0: it ended.
    pub pid: u32,
    /// Processes now.
    pub processes: u64,
    /// CPU since its processes are known.
    pub cpu_s: f64,
    /// CPU by `/proc` since the first check, and this book's figure for the same time.
    pub proc_cpu_s: f64,
    /// See `proc_cpu_s`.
    pub checked_cpu_s: f64,
    /// The second divided by the first, if there is enough.
    pub capture_ratio: Option<f64>,
    /// What the server says of itself, if it was asked.
    pub own: Option<SelfReport>,
    /// Components; their sum is `cpu_s`.
    pub components: Vec<ComponentView>,
    /// Users with their databases, in the order of their first sessions.
    pub users: Vec<UserView>,
    /// Sessions that run, the one with the most CPU first.
    pub sessions: Vec<SessionView>,
}

/// What a server says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SelfReport {
    /// CPU since it was asked first, seconds, if it counts that; and this book's figure for the same time.
    pub cpu_s: Option<f64>,
    /// See `cpu_s`.
    pub book_cpu_s: Option<f64>,
    /// Name, number and seconds of its commands, since it counts them.
    pub commands: Vec<(String, u64, f64)>,
    /// Its users.
    pub users: Vec<OwnUser>,
}

/// CPU of a component.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ComponentView {
    /// Its name.
    pub name: &'static str,
    /// Seconds.
    pub cpu_s: f64,
    /// Part of it whose process may yet turn out to be another component; seconds.
    pub open_s: f64,
}

/// CPU of a user with a database, seconds.
#[derive(Clone, Debug, Default)]
pub struct UserView {
    /// The user; empty: not known.
    pub user: String,
    /// The database.
    pub database: String,
    /// Of sessions and the workers that compute for them.
    pub cpu_s: f64,
    /// For requests.
    pub requests_s: f64,
    /// Of parallel workers.
    pub workers_s: f64,
    /// Of sessions, outside requests.
    pub connection_s: f64,
    /// Sessions now, and those that ended.
    pub sessions: u64,
    /// See `sessions`.
    pub ended: u64,
    /// CPU of requests by class, the largest first.
    pub classes: Vec<(ClassId, f64)>,
}

/// A session that runs. Seconds.
#[derive(Clone, Debug, Default)]
pub struct SessionView {
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub user: String,
    /// Its database.
    pub database: String,
    /// All its CPU.
    pub cpu_s: f64,
    /// For requests.
    pub requests_s: f64,
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

impl Book {
    pub(super) fn new(system: DatabaseSystem, root: u32, service: &str) -> Self {
        Self {
            system,
            root,
            service: Arc::from(service),
            place: None,
            cpu: 0,
            before: 0,
            refused: 0,
            users: vec![User::new("", ""), User::new("_other", "_other")],
            components: Vec::new(),
            first: None,
            last: (0, 0),
            earlier: (0, 0),
            own: None,
        }
    }

    /// The server says this of itself.
    pub(super) fn compare(&mut self, figures: OwnFigures) {
        let OwnFigures { cpu, commands, users, .. } = figures;
        let before = self.own.as_ref().and_then(|own| own.cpu);
        let cpu = cpu.map(|cpu| {
            let now = (cpu, self.cpu);
            // Less than before: it is another run of the server.
            let first = before.filter(|[_, last]| last.0 <= cpu).map_or(now, |[first, _]| first);
            [first, now]
        });
        self.own = Some(OwnRecord { cpu, commands, users });
    }

    /// A process that serves several users worked for this one.
    pub(super) fn serve(&mut self, user: usize, work: ProcessWork, cpu: u64) {
        if let Some(user) = self.users.get_mut(user) {
            user.spent.add(work, cpu);
        }
    }

    /// A process ended. What a worker did is its leader's, whose role is given.
    pub(super) fn close(&mut self, role: Role, spent: &Spent, leader: Option<Role>) {
        let (user, worker) = match (role, leader) {
            (Role::Session(user), _) => (user, false),
            (Role::Worker(_), Some(Role::Session(user))) => (user, true),
            // A session of which nothing but its requests is known.
            (Role::Unknown, _) if spent.requests > 0 => (UNKNOWN, false),
            (Role::Server, _) => {
                add(&mut self.components, OUTSIDE, spent.other);
                if let Some(user) = self.users.get_mut(UNKNOWN) {
                    user.spent.merge_requests(spent);
                }
                return;
            }
            _ => return add(&mut self.components, component(role), spent.cpu()),
        };
        let Some(user) = self.users.get_mut(user) else { return };
        if worker {
            user.workers += spent.cpu();
        } else {
            user.spent.merge(spent);
            user.ended += 1;
        }
    }

    /// The place of a user with a database, made at first sight.
    pub(super) fn user(&mut self, user: &str, database: &str) -> usize {
        let (user, database) = (tracer_model::text::printable(user), tracer_model::text::printable(database));
        let known = self.users.iter().position(|known| *known.user == *user && *known.database == *database);
        if let Some(known) = known {
            return known;
        }
        if self.users.len() >= USERS {
            self.refused += 1;
            return OTHER;
        }
        self.users.push(User::new(&user, &database));
        self.users.len() - 1
    }

    /// `/proc` says that its processes have used `nanos` since they began.
    pub(super) fn check(&mut self, nanos: u64) {
        let nanos = nanos.saturating_sub(self.before);
        self.last = (nanos, self.cpu);
        self.first.get_or_insert((nanos, self.cpu));
    }

    /// The same instance was started again, as `new`. Returns the places of the new one's users.
    pub(super) fn resume(&mut self, new: Self) -> Vec<usize> {
        let (proc, own) = self.since_first();
        self.earlier = (self.earlier.0 + proc, self.earlier.1 + own);
        (self.first, self.before, self.own) = (None, new.before, None);
        self.root = new.root;
        self.cpu += new.cpu;
        for (name, cpu) in new.components {
            add(&mut self.components, name, cpu);
        }
        let mut places = Vec::new();
        for user in &new.users {
            let place = self.user(&user.user, &user.database);
            places.push(place);
            if let Some(mine) = self.users.get_mut(place) {
                mine.merge(user);
            }
        }
        places
    }

    /// CPU by `/proc` and by this book from the first check of this run to the last.
    fn since_first(&self) -> (u64, u64) {
        let Some(first) = self.first else { return (0, 0) };
        (self.last.0.saturating_sub(first.0), self.last.1.saturating_sub(first.1))
    }

    /// The book with its running processes. `role_of` gives the role of another process.
    pub(super) fn view<'a>(
        &'a self,
        members: impl Iterator<Item = (&'a u32, &'a Member)>,
        role_of: impl Fn(u32) -> Option<Role>,
    ) -> BookView {
        let mut users = self.users.clone();
        let mut components = self.components.clone();
        let mut open = 0;
        let mut sessions = Vec::new();
        let mut processes = 0;
        for (pid, member) in members {
            processes += 1;
            let spent = &member.spent;
            let leader = if let Role::Worker(leader) = member.role { role_of(leader) } else { None };
            let (user, worker) = match (member.role, leader) {
                (Role::Session(user), _) => (user, false),
                (Role::Worker(_), Some(Role::Session(user))) => (user, true),
                (Role::Unknown, _) if spent.requests > 0 => (UNKNOWN, false),
                (Role::Server, _) => {
                    add(&mut components, OUTSIDE, spent.other);
                    if let Some(user) = users.get_mut(UNKNOWN) {
                        user.spent.merge_requests(&spent.without_requests(&member.of_users));
                    }
                    continue;
                }
                (role, _) => {
                    open += if role == Role::Unknown { spent.cpu() } else { 0 };
                    add(&mut components, component(role), spent.cpu());
                    continue;
                }
            };
            let Some(user) = users.get_mut(user) else { continue };
            if worker {
                user.workers += spent.cpu();
                continue;
            }
            user.spent.merge(spent);
            user.running += 1;
            sessions.push(SessionView {
                pid: *pid,
                user: user.user.to_string(),
                database: user.database.to_string(),
                cpu_s: seconds(spent.cpu()),
                requests_s: seconds(spent.requests),
            });
        }
        for user in &users {
            add(&mut components, REQUESTS, user.spent.requests);
            add(&mut components, CONNECTIONS, user.spent.other);
            add(&mut components, WORKERS, user.workers);
        }
        components.sort_by_key(|(_, cpu)| std::cmp::Reverse(*cpu));
        sessions.sort_by(|a, b| b.cpu_s.total_cmp(&a.cpu_s).then(a.pid.cmp(&b.pid)));
        let (proc, own) = self.since_first();
        let (proc, own) = (proc + self.earlier.0, own + self.earlier.1);
        let component = |(name, cpu): (&'static str, u64)| ComponentView {
            name,
            cpu_s: seconds(cpu),
            open_s: if name == UNNAMED { seconds(open) } else { 0.0 },
        };
        BookView {
            system: self.system.name(),
            service_name: Arc::clone(&self.service),
            instance: self.place.clone().unwrap_or_default(),
            pid: self.root,
            processes,
            cpu_s: seconds(self.cpu),
            proc_cpu_s: seconds(proc),
            checked_cpu_s: seconds(own),
            capture_ratio: (proc >= ENOUGH).then(|| own as f64 / proc as f64),
            own: self.own.as_ref().map(OwnRecord::view),
            components: components.into_iter().filter(|(_, cpu)| *cpu > 0).map(component).collect(),
            users: users.iter().map(User::view).collect(),
            sessions,
        }
    }
}

impl OwnRecord {
    fn view(&self) -> SelfReport {
        SelfReport {
            cpu_s: self.cpu.map(|[first, last]| seconds(last.0.saturating_sub(first.0))),
            book_cpu_s: self.cpu.map(|[first, last]| seconds(last.1.saturating_sub(first.1))),
            commands: self.commands.iter().map(|one| (one.name.clone(), one.calls, seconds(one.time))).collect(),
            users: self.users.clone(),
        }
    }
}

/// The component of a process that serves no session.
fn component(role: Role) -> &'static str {
    match role {
        Role::Root => ROOT,
        Role::Component(name) => name,
        Role::Program => PROGRAMS,
        Role::Worker(_) => WORKERS,
        Role::Session(_) => CONNECTIONS,
        Role::Server => OUTSIDE,
        Role::Unknown => UNNAMED,
    }
}

fn add(sums: &mut Vec<(&'static str, u64)>, name: &'static str, cpu: u64) {
    match sums.iter_mut().find(|(known, _)| *known == name) {
        Some((_, sum)) => *sum += cpu,
        None => sums.push((name, cpu)),
    }
}
