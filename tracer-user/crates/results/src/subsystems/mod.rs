//! Books of subsystems: what the users, databases and sessions of a database server on this host, and its own components, take of
//! the CPU of its processes.
//!
//! PostgreSQL runs each session in a process of its own, so everything that process uses is the session's: for requests, by class, or
//! for its connection. Who the session is for is in the message that began it, once the server accepted it, or in the process's title
//! if the session is older than the agent. Processes without a session are components by their titles.
//!
//! MariaDB and Redis are one process: their books tell requests, by class, from everything else. A request is the user's who logged
//! in on its connection (`connection_users`).
//!
//! Beside them stands what a server says of itself (`own_figures`), where the operator let the agent ask it.
//!
//! The sum over all of it, divided by what `/proc` says of the same processes, is the capture ratio of the subsystem.

mod book;
mod connection_users;
pub mod login;
pub mod own_figures;
mod postgresql;

use rustc_hash::FxHashMap;

use self::book::Book;
pub use self::book::{BookView, ComponentView, SelfReport, SessionView, UserView};
use tracer_host::guard::tables::TableUse;
use tracer_host::process::ProcessFacts;
use tracer_host::process_cpu::ProcessCpu;
use tracer_model::ClassId;
use tracer_transactions::process_costs::ProcessWork;

use self::connection_users::{ConnectionUsers, InstanceUser};
use self::own_figures::OwnFigures;
use self::postgresql::Title;

/// Limit of instances; one without processes makes room.
const INSTANCES: usize = 32;
/// Limit of their processes.
const PROCESSES: usize = 16_384;
/// Most processes whose titles are read at once, and how often that is tried for one.
const TITLES: usize = 128;
const TRIES: u8 = 60;
/// Most processes of an instance that are read to check its books.
pub const CHECKED: usize = 1_024;
/// Classes of a session that are kept apart.
const CLASSES: usize = 256;

/// `[subsystems]`: where users and databases are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// In the API and in the console.
    pub users: bool,
    /// In metrics, too.
    pub user_metrics: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { users: true, user_metrics: false }
    }
}

/// What kind of subsystem it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseSystem {
    /// PostgreSQL: a process for each session.
    PostgreSql,
    /// MariaDB or MySQL: one process.
    MariaDb,
    /// Redis or Valkey: one process, and children that save.
    Redis,
}

impl DatabaseSystem {
    /// The word in the API and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::PostgreSql => "postgresql",
            Self::MariaDb => "mariadb",
            Self::Redis => "redis",
        }
    }

    fn of(facts: &ProcessFacts) -> Option<Self> {
        match facts.exe.rsplit('/').next() {
            Some("postgres") => Some(Self::PostgreSql),
            Some("mariadbd" | "mysqld") => Some(Self::MariaDb),
            // Debian's redis-server is a link to redis-check-rdb.
            Some("redis-server" | "valkey-server") => Some(Self::Redis),
            Some("redis-check-rdb") if facts.comm == "redis-server" => Some(Self::Redis),
            _ => None,
        }
    }

    /// Where an instance is, by its title or arguments: the directory of its data, for Redis the address it listens on.
    fn place(self, title: &str) -> Option<&str> {
        match self {
            Self::PostgreSql => postgresql::data_directory(title),
            Self::MariaDb => title.split_ascii_whitespace().find_map(|word| word.strip_prefix("--datadir=")),
            Self::Redis => title.split_ascii_whitespace().nth(1).filter(|address| address.contains(':')),
        }
    }

    /// The role of a child by its title.
    fn component(self, title: &str) -> Option<&'static str> {
        match self {
            Self::Redis if title.starts_with("redis-rdb-bgsave") => Some("background save"),
            Self::Redis if title.starts_with("redis-aof-rewrite") => Some("append-only file"),
            _ => None,
        }
    }
}

/// What a process of a subsystem does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// Not known (yet).
    #[default]
    Unknown,
    /// The process that the others are children of.
    Root,
    /// The one process that does everything.
    Server,
    /// Serves a session of this user of the instance, with a database.
    Session(usize),
    /// Computes for the session of another process.
    Worker(u32),
    /// A part of the server.
    Component(&'static str),
    /// Another program that a process of the server started: an archive command, for example.
    Program,
}

/// CPU of a process or of several, nanoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spent {
    /// For requests.
    requests: u64,
    /// Otherwise.
    other: u64,
    /// Of `requests`, by class; what finds no room, or whose class is not known, is missing.
    classes: FxHashMap<ClassId, u64>,
}

impl Spent {
    fn add(&mut self, work: ProcessWork, cpu: u64) {
        let ProcessWork::Request(class) = work else {
            self.other += cpu;
            return;
        };
        self.requests += cpu;
        if let Some(class) = class
            && (self.classes.len() < CLASSES || self.classes.contains_key(&class))
        {
            *self.classes.entry(class).or_default() += cpu;
        }
    }

    fn merge(&mut self, other: &Self) {
        self.other += other.other;
        self.merge_requests(other);
    }

    fn merge_requests(&mut self, other: &Self) {
        self.requests += other.requests;
        for (class, cpu) in &other.classes {
            if self.classes.len() < CLASSES || self.classes.contains_key(class) {
                *self.classes.entry(*class).or_default() += cpu;
            }
        }
    }

    /// Without the requests of a part of it.
    fn without_requests(&self, part: &Self) -> Self {
        let left = |(class, cpu): (&ClassId, &u64)| {
            let part = part.classes.get(class).copied().unwrap_or(0);
            (*class, cpu.saturating_sub(part))
        };
        let classes = self.classes.iter().map(left).filter(|(_, cpu)| *cpu > 0).collect();
        Self { requests: self.requests.saturating_sub(part.requests), other: self.other, classes }
    }

    fn cpu(&self) -> u64 {
        self.requests + self.other
    }
}

/// A process of an instance.
#[derive(Debug, Default)]
pub(crate) struct Member {
    instance: usize,
    role: Role,
    spent: Spent,
    /// Of one that does everything: the part of its requests that is a user's.
    of_users: Spent,
    tries: u8,
    /// It may have used CPU before it was known.
    is_older: bool,
}

/// The books of all subsystems.
#[derive(Debug, Default)]
pub struct Subsystems {
    settings: Settings,
    books: Vec<Book>,
    members: FxHashMap<u32, Member>,
    connections: ConnectionUsers,
    refused: u64,
    /// Labels of instances that made room for others, not yet removed from metrics.
    removed: Vec<(&'static str, String)>,
}

impl Subsystems {
    /// Empty books.
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Where users and databases are named.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// A process is what these facts say.
    pub fn process(&mut self, tgid: u32, facts: &ProcessFacts, service: &str) {
        let line = facts.cmdline.join(" ");
        let Some(system) = DatabaseSystem::of(facts) else {
            // Another program, started by a process of an instance or not; one that ends has none.
            if let Some(member) = self.members.get_mut(&tgid).filter(|_| !facts.exe.is_empty()) {
                member.role = Role::Program;
            }
            return;
        };
        if !self.members.contains_key(&tgid) {
            let titled = system == DatabaseSystem::PostgreSql && line.starts_with("postgres: ");
            let is_child = titled || self.instance_of(facts.parent).is_some();
            let root = if is_child { facts.parent } else { tgid };
            let Some(instance) = self.instance_of(root).or_else(|| self.open(system, root, service)) else { return };
            self.join(root, instance);
            self.join(tgid, instance);
            // It may be older than the agent: what it used before is found at the next check.
            if let Some(member) = self.members.get_mut(&tgid) {
                member.is_older = true;
            }
        }
        self.title(tgid, &line);
    }

    /// `child` was forked by a process that may belong to an instance.
    pub fn forked(&mut self, parent: u32, child: u32) {
        let instance = self.instance_of(parent);
        // Records of two CPUs are not in the order of time: the child may be known already.
        let is_known = |member: &Member| Some(member.instance) == instance && member.spent.cpu() == 0;
        if self.members.get(&child).is_some_and(is_known) {
            return;
        }
        self.gone(child);
        if let Some(instance) = instance {
            self.join(child, instance);
        }
    }

    /// A process executed another program.
    pub fn executed(&mut self, tgid: u32) {
        if let Some(member) = self.members.get_mut(&tgid) {
            member.role = Role::Program;
        }
    }

    /// The server accepted a session of `user` with `database` that process `tgid` serves on the connection with this cookie.
    pub fn session(&mut self, tgid: u32, cookie: u64, user: &str, database: &str) {
        if let Some(member) = self.members.get_mut(&tgid)
            && matches!(member.role, Role::Unknown | Role::Session(_) | Role::Server)
            && let Some(book) = self.books.get_mut(member.instance)
        {
            let user = if self.settings.users { book.user(user, database) } else { book::UNKNOWN };
            if member.role == Role::Server {
                self.connections.log_in(cookie, InstanceUser { instance: member.instance, user });
            } else {
                member.role = Role::Session(user);
            }
        }
    }

    /// Process `tgid` served a request on this connection, with `cpu` nanoseconds that it is charged for by [`Self::spend`].
    pub fn request(&mut self, tgid: u32, cookie: u64, class: ClassId, cpu: u64) {
        if let Some(member) = self.members.get_mut(&tgid).filter(|member| member.role == Role::Server)
            && let Some(InstanceUser { instance, user }) = self.connections.user(cookie)
            && instance == member.instance
            && let Some(book) = self.books.get_mut(member.instance)
        {
            let work = ProcessWork::Request(Some(class));
            member.of_users.add(work, cpu);
            book.serve(user, work, cpu);
        }
    }

    /// The title of a process, or its arguments.
    pub fn title(&mut self, tgid: u32, title: &str) {
        let Some(member) = self.members.get_mut(&tgid) else { return };
        let instance = member.instance;
        let Some(book) = self.books.get_mut(instance) else { return };
        let system = book.system;
        if member.role == Role::Unknown {
            let read = if system == DatabaseSystem::PostgreSql { postgresql::read(title) } else { None };
            member.role = match read {
                None => system.component(title).map_or(Role::Unknown, Role::Component),
                Some(Title::Session(..)) if !self.settings.users => Role::Session(book::UNKNOWN),
                Some(Title::Session(user, database)) => Role::Session(book.user(&user, &database)),
                Some(Title::Worker(leader)) => Role::Worker(leader),
                Some(Title::Component(name)) => Role::Component(name),
            };
        }
        if book.root == tgid
            && book.place.is_none()
            && let Some(place) = system.place(title)
        {
            self.placed(instance, place);
        }
    }

    /// A process used `cpu` nanoseconds.
    pub fn spend(&mut self, tgid: u32, work: ProcessWork, cpu: u64) {
        let Some(member) = self.members.get_mut(&tgid) else { return };
        member.spent.add(work, cpu);
        if let Some(book) = self.books.get_mut(member.instance) {
            book.cpu += cpu;
        }
    }

    /// A process ended.
    pub fn gone(&mut self, tgid: u32) {
        let Some(member) = self.members.remove(&tgid) else { return };
        let leader = if let Role::Worker(leader) = member.role { self.members.get(&leader) } else { None };
        let leader = leader.map(|leader| leader.role);
        let Some(book) = self.books.get_mut(member.instance) else { return };
        book.close(member.role, &member.spent.without_requests(&member.of_users), leader);
        if book.root == tgid {
            book.root = 0;
        }
    }

    /// Processes whose titles should be read, and roots whose arguments should.
    pub fn wanted_titles(&mut self) -> Vec<u32> {
        let mut wanted = Vec::new();
        for (tgid, member) in &mut self.members {
            let unplaced =
                member.role == Role::Root && self.books.get(member.instance).is_some_and(|book| book.place.is_none());
            if wanted.len() < TITLES && member.tries < TRIES && (member.role == Role::Unknown || unplaced) {
                member.tries += 1;
                wanted.push(*tgid);
            }
        }
        wanted
    }

    /// Instances to be checked, with their processes, the root first; without those that have too many.
    pub fn to_check(&self) -> Vec<(usize, Vec<u32>)> {
        let running = self.books.iter().enumerate().filter(|(_, book)| book.root != 0);
        let mut lists: Vec<(usize, Vec<u32>)> = running.map(|(index, book)| (index, vec![book.root])).collect();
        for (tgid, member) in &self.members {
            if !matches!(member.role, Role::Root | Role::Server)
                && let Some((_, list)) = lists.iter_mut().find(|(index, _)| *index == member.instance)
            {
                list.push(*tgid);
            }
        }
        lists.retain(|(_, list)| list.len() <= CHECKED);
        lists
    }

    /// What `/proc` says of the processes of an instance now.
    pub fn checked(&mut self, instance: usize, processes: &[(u32, ProcessCpu)]) {
        let Some(book) = self.books.get_mut(instance) else { return };
        let mut sum = 0u64;
        for (tgid, ProcessCpu { own, children }) in processes {
            let cpu = own.saturating_add(*children);
            sum = sum.saturating_add(cpu);
            if let Some(member) = self.members.get_mut(tgid).filter(|member| member.is_older) {
                member.is_older = false;
                book.before = book.before.saturating_add(cpu.saturating_sub(member.spent.cpu()));
            }
        }
        book.check(sum);
    }

    /// A server says this of itself; one that is in no book is passed over.
    pub fn compare(&mut self, mut figures: OwnFigures) {
        if !self.settings.users {
            figures.users.clear();
        }
        let is_it = |book: &&mut Book| book.root == figures.pid && book.root != 0 && book.system == figures.system;
        if let Some(book) = self.books.iter_mut().find(is_it) {
            book.compare(figures);
        }
    }

    /// The books.
    pub fn views(&self) -> Vec<BookView> {
        let view = |(index, book): (usize, &Book)| {
            let members = self.members.iter().filter(move |(_, member)| member.instance == index);
            book.view(members, |leader| self.members.get(&leader).map(|leader| leader.role))
        };
        self.books.iter().enumerate().map(view).collect()
    }

    /// System and instance of those whose series should go.
    pub fn take_removed(&mut self) -> std::vec::Drain<'_, (&'static str, String)> {
        self.removed.drain(..)
    }

    /// Processes of instances, and instances.
    pub fn table_use(&self) -> [TableUse; 2] {
        [
            TableUse::new(self.members.len(), PROCESSES, self.refused),
            TableUse::new(self.books.len(), INSTANCES, self.books.iter().map(|book| book.refused).sum()),
        ]
    }

    fn instance_of(&self, tgid: u32) -> Option<usize> {
        self.members.get(&tgid).map(|member| member.instance)
    }

    /// Makes `tgid` a process of an instance.
    fn join(&mut self, tgid: u32, instance: usize) {
        if tgid == 0 || self.members.contains_key(&tgid) {
            return;
        }
        if self.members.len() >= PROCESSES {
            self.refused += 1;
            return;
        }
        let role = match self.books.get(instance) {
            Some(book) if book.root == tgid && book.system == DatabaseSystem::PostgreSql => Role::Root,
            Some(book) if book.root == tgid => Role::Server,
            _ => Role::Unknown,
        };
        let is_older = matches!(role, Role::Root | Role::Server);
        self.members.insert(tgid, Member { instance, role, is_older, ..Member::default() });
    }

    /// A new instance whose processes are children of `root`.
    fn open(&mut self, system: DatabaseSystem, root: u32, service: &str) -> Option<usize> {
        let book = Book::new(system, root, service);
        if self.books.len() < INSTANCES {
            self.books.push(book);
            return Some(self.books.len() - 1);
        }
        let used: Vec<usize> = self.members.values().map(|member| member.instance).collect();
        let free = (0..self.books.len()).find(|index| !used.contains(index));
        let Some((index, old)) = free.and_then(|index| Some((index, self.books.get_mut(index)?))) else {
            self.refused += 1;
            return None;
        };
        let old = std::mem::replace(old, book);
        if let Some(place) = old.place {
            self.removed.push((old.system.name(), place));
        }
        Some(index)
    }

    /// The place of an instance is known. One of that place that ended goes on: it was restarted.
    fn placed(&mut self, instance: usize, place: &str) {
        let place = tracer_model::text::printable(place).into_owned();
        let Some(system) = self.books.get(instance).map(|book| book.system) else { return };
        let before = self
            .books
            .iter()
            .position(|book| book.system == system && book.root == 0 && book.place.as_deref() == Some(&*place));
        let Some(before) = before.filter(|before| *before != instance) else {
            if let Some(book) = self.books.get_mut(instance) {
                book.place = Some(place);
            }
            return;
        };
        let Some(new) = self.books.get_mut(instance) else { return };
        let new = std::mem::replace(new, Book::new(system, 0, ""));
        let Some(book) = self.books.get_mut(before) else { return };
        let users = book.resume(new);
        let place = |user: usize| users.get(user).copied().unwrap_or(book::UNKNOWN);
        self.connections.merge(instance, before, place);
        for member in self.members.values_mut().filter(|member| member.instance == instance) {
            member.instance = before;
            if let Role::Session(user) = &mut member.role {
                *user = place(*user);
            }
        }
    }
}

#[cfg(test)]
mod tests;
