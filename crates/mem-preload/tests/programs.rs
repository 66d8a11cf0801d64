//! Everyday programs, each run in the region and in a plain directory: their output and the files that they leave must
//! be the same.

use crate::support::{Both, is_installed};

const CAPACITY_BYTES: u64 = 128 << 20;

/// Lists all files below the directory: types, permissions, sizes and bytes.
const TREE: &str = r#"
cd "$HERE" && find . | LC_ALL=C sort | while IFS= read -r name; do
    if [ -L "$name" ]; then echo "$name -> $(readlink "$name")";
    elif [ -d "$name" ]; then echo "$name $(stat -c '%A' "$name")";
    else echo "$name $(stat -c '%A %s %h' "$name") $(md5sum < "$name")"; fi
done
"#;

fn compare(needs: &[&str], script: &str) {
    compare_in("sh", needs, script);
}

fn compare_in(shell: &str, needs: &[&str], script: &str) {
    if !needs.iter().all(|program| is_installed(program)) || !is_installed(shell) {
        return;
    }
    let both = Both::new(CAPACITY_BYTES);
    both.compare(shell, &format!("cd \"$HERE\" || exit 1\n{script}\n"));
    both.compare(shell, TREE);
}

#[test]
fn small_tools_work_as_in_a_directory() {
    compare(
        &[],
        r#"
printf 'b\na\nc\n' > f; cat f; cp f g; mv g h; ls; ls -l h | cut -c1-10; stat -c '%s %A %h %F' f
touch -d '2020-01-01 UTC' f; stat -c %Y f; head -n1 f; tail -n1 f; tail -c +3 f; wc f; grep -n a f; sort f
sort -o f f; cat f; sed -i s/a/x/ f; cat f; awk '{ print NR, $1 }' f; awk 'BEGIN { print "awk" > "out"; close("out")
while ((getline line < "out") > 0) print line }'; md5sum f; od -c f; nl f; paste f f; tr a-z A-Z < f; cut -c1 f
seq 1 20000 | shuf --random-source=/bin/sh > numbers; sort -n numbers | md5sum; sort -n -o numbers numbers;
uniq numbers | wc -l
split -l 7000 numbers part; cat parta? | cmp - numbers && echo same; tac numbers | head -n1; truncate -s 100 numbers
rm f nothere; ls nothere; cat nothere; mkdir d; rmdir d; mkdir -p x/y/z; touch x/y/z/w; rm -r x; cp nothere here
ln -s h link; readlink link; cat link; ln h hard; stat -c %h h; chmod 640 h; stat -c %a hard; rm hard; ls -a | sort
cp -a link copy; readlink copy; realpath link | sed "s#$HERE##"; install -m 755 h run; stat -c %a run;
du -a x 2>&1 | wc -l
"#,
    );
}

#[test]
fn paths_across_the_border_lead_where_they_do_in_a_directory() {
    compare(
        &[],
        r#"
mkdir -p a/b; echo deep > a/b/file; cd a; cat b/file; cat ../a/b/file; cat "$HERE/a/../a/b/file"; cd b;
pwd | sed "s#$HERE##"
ls ..; cat ./file; cd ../..; cat "$HERE//a///b/./file"; ln -s a/b short; cat short/file; cd short;
pwd -P | sed "s#$HERE##"
cd "$HERE"; cat a/b/file/; mkdir 'with space'; echo x > 'with space/y'; cat with*/y;
ls "$HERE/../etc/nothere" 2>&1 | wc -l
(cd / && cat "${HERE#/}/a/b/file"); (cd /usr && cat "..$HERE/a/b/file"); ln -s /etc/hostname out;
cmp out /etc/hostname && echo same
long=$(printf '%0255d' 1); echo long > "$long"; cat "$long"; rm "$long"; echo no > "${long}2"; ln -s loop loop;
cat loop
cat < /dev/fd/0 < a/b/file; exec 5< a/b/file; cat /dev/fd/5; cat /proc/self/fd/5; exec 5<&-
"#,
    );
}

#[test]
fn redirections_of_shells_work_as_in_a_directory() {
    compare(
        &[],
        r#"
(echo a; echo b) > f; cat f; echo c >> f; cat < f; { echo out; echo err >&2; } > o 2> e; cat o e
exec 3> three; echo x >&3; echo y >&3; exec 3>&-; cat three; exec 4<> rw; echo hello >&4; exec 4>&-; cat rw
cat > here <<END
one $((1 + 1))
END
cat here; read -r line < here; echo "got $line"; while read -r a b; do echo "$b $a"; done < here
echo data | tee t1 t2 | wc -c; cat t1 t2; cat here nothere > both 2>&1; cat both
sh -c 'echo in > log; exec > log2 2>&1; echo logged; ls nothere; ls log'; cat log log2; (cat < f; cat) < o
for i in 1 2 3; do echo $i; done | xargs -I{} sh -c 'echo {} >> acc'; cat acc; find . -type f -exec cat {} + | wc -c
sh -c 'printf x; sh -c "printf y"; /bin/printf z' > order; cat order; cat f > f; wc -c f; (sleep 0.05;
echo late) > l & wait; cat l
env printf 'a\n' > p; sh -c 'echo 1 >> p; (echo 2 >> p); cat p >> q; cat q' ; nohup echo n > n 2> /dev/null; cat n
perl -e 'print STDERR "to err\n"; $! = 2; warn "x: $!"; die "dead\n"' 2> err; cat err
"#,
    );
    compare_in(
        "bash",
        &[],
        r#"
set -o noclobber; echo x > f; echo y > f; echo $?; echo z >| f; cat f; set +o noclobber; cat <(echo sub) > s; cat s
mapfile -t lines < f; echo "${lines[0]}"; { echo a; echo b >&2; } &> both; cat both; cat <<< word > w; cat w;
printf -v v %s x
coproc cat; echo through >&"${COPROC[1]}"; read -r back <&"${COPROC[0]}"; echo "$back" > c; cat c; exec {fd}> n;
echo q >&$fd; cat n
exec {fd}>&-; echo one > /dev/stderr 2> d; cat d; (trap 'echo trapped > t' USR1; kill -USR1 $BASHPID); cat t;
printf 'x%.0s' {1..70000} > big; wc -c big
"#,
    );
}

#[test]
fn archivers_work_as_in_a_directory() {
    compare(
        &["tar", "gzip", "xz", "bzip2"],
        r#"
mkdir d d/e; seq 1 5000 > d/a; seq 1 50 > d/e/b; ln -s a d/l; ln d/a d/h; touch -d '2021-01-01 UTC' d/* d/e d
tar cf t.tar d; tar tf t.tar | sort; mkdir x; tar xf t.tar -C x; cmp d/a x/d/a; readlink x/d/l; stat -c %h x/d/a;
rm t.tar
tar czf t.tgz d; tar tzf t.tgz | wc -l; tar cf - d | (cd x && tar xf -); gzip -n d/a; ls d; gunzip d/a.gz;
gzip -nk d/e/b; zcat d/e/b.gz | wc -l
xz -k d/e/b; xzcat d/e/b.xz | md5sum; bzip2 d/e/b; bunzip2 d/e/b.bz2; md5sum d/e/b; rm -f *.tgz d/*.gz
dd if=d/a of=o bs=1k count=3 2> /dev/null; dd if=/dev/zero of=z bs=64k count=20 2> /dev/null;
dd if=o of=z bs=10 seek=5 conv=notrunc 2> /dev/null
wc -c o z; md5sum z; dd if=z bs=100 skip=2 count=1 2> /dev/null | od -c | head -n3; cp --sparse=always z y; cmp y z
"#,
    );
    compare(
        &["rsync"],
        r#"
mkdir -p a/b; seq 1 9000 > a/x; seq 1 10 > a/b/y; rsync -a a/ c/; echo changed >> a/x; touch -d '2021-01-01 UTC' a/x
rsync -ai a/ c/ | sort;
rsync -a --delete a/b/ c/
rsync -a --inplace a/x c/x; cmp a/x c/x && echo same
"#,
    );
}

#[test]
fn python_works_as_in_a_directory() {
    compare(
        &["python3"],
        r#"
python3 - <<'END'
import fcntl, json, mmap, os, shutil, sqlite3, subprocess, tempfile
open("j", "w").write(json.dumps([1, 2])); print(json.load(open("j")))
with open("m", "w+b") as f:
    f.write(b"x" * 5000); f.flush()
    m = mmap.mmap(f.fileno(), 0); m[10:15] = b"hello"; m.flush(); f.seek(8); print(f.read(10)); m.close()
    m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY); m[0] = 65; print(m[0], f.seek(0), f.read(1)); m.close()
    m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); print(m[10:15], m.size()); m.close()
print(sorted(os.listdir(".")), os.stat("m").st_size, os.path.exists("zz"))
shutil.copy("m", "m2"); os.rename("m2", "m3"); os.makedirs("q/w/e"); shutil.rmtree("q")
d = tempfile.mkdtemp(dir="."); open(d + "/k", "w").write("1"); print(os.listdir(d)); shutil.rmtree(d)
print(subprocess.run(["cat", "j"], capture_output=True, text=True).stdout)
with open("sub", "w") as o: subprocess.run(["sh", "-c", "echo sub; echo err >&2"], stdout=o, stderr=subprocess.STDOUT)
print(open("sub").read(), subprocess.run(["cat"], stdin=open("j"), capture_output=True).stdout)
fd = os.open(".", os.O_RDONLY); print(sorted(os.listdir(fd)), os.stat("j", dir_fd=fd).st_size)
for e in sorted(os.scandir("."), key=lambda e: e.name): print(e.name, e.is_file(), e.stat().st_size)
f = open("lk", "w"); fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_EX); f.close()
os.symlink("j", "js"); print(os.readlink("js"), os.path.realpath("js")[-2:]); os.link("j", "jl");
print(os.stat("j").st_nlink)
f = open("txt", "w+"); f.write("é\n" * 1000); f.seek(0); print(len(f.read())); f.truncate(10); f.close();
print(os.path.getsize("txt"))
if os.fork() == 0: os.write(os.open("child", os.O_CREAT | os.O_WRONLY, 0o644), b"c"); os._exit(0)
os.wait(); print(open("child").read()); os.utime("j", ns=(5, 7)); print(os.stat("j").st_mtime_ns)
for e in [lambda: open("no/x"), lambda: os.rmdir("j"), lambda: os.mkdir("j")]:
    try: e()
    except OSError as error: print(error.errno)
actions = [(os.POSIX_SPAWN_OPEN, 1, "sp", os.O_CREAT | os.O_WRONLY, 0o644)]
os.posix_spawn("/bin/sh", ["sh", "-c", "echo spawned; ls > listed"], os.environ, file_actions=actions)
os.wait(); print(open("sp").read())
a = os.open("j", os.O_RDONLY); b = os.open("jc", os.O_CREAT | os.O_WRONLY, 0o644);
print(os.sendfile(b, a, 0, 100), os.copy_file_range(a, b, 3), os.stat("jc").st_size)
os.write(2, b"direct\n"); os.chdir("/"); print(os.getcwd())
END
"#,
    );
}

#[test]
fn splice_moves_bytes_between_files_and_pipes_as_in_a_directory() {
    let script = r#"
python3 - <<'END'
import os, sys
if sys.version_info < (3, 10): sys.exit("skipped: os.splice is newer than this Python")
open("from", "wb").write(bytes(range(256)) * 1000)
source, target = os.open("from", os.O_RDONLY), os.open("to", os.O_CREAT | os.O_RDWR, 0o644)
for flags in [0, os.SPLICE_F_NONBLOCK]:
    reading, writing = os.pipe()
    moved = os.splice(source, writing, 3000, flags=flags); print(moved, os.lseek(source, 0, os.SEEK_CUR))
    print(os.splice(source, writing, 500, offset_src=7), os.lseek(source, 0, os.SEEK_CUR))
    print(os.splice(reading, target, 3000, flags=flags), os.lseek(target, 0, os.SEEK_CUR))
    print(os.splice(reading, target, 500, offset_dst=10), os.lseek(target, 0, os.SEEK_CUR))
    print(os.pread(target, 9000, 0)[:600], os.stat("to").st_size)
    for call in [
        lambda: os.splice(source, target, 10),
        lambda: os.splice(source, writing, 10, offset_dst=3),
        lambda: os.splice(reading, source, 10),
        lambda: os.splice(reading, target, 10, offset_src=3),
        lambda: os.splice(reading, target, 10, flags=os.SPLICE_F_NONBLOCK),
        lambda: os.splice(target, writing, 10, offset_src=1 << 40),
    ]:
        try: print(call())
        except OSError as error: print(error.errno)
    os.close(writing); print(os.splice(reading, target, 10)); os.close(reading)
END
"#;
    compare(&["python3"], script);
}

#[test]
fn wrong_positions_and_paths_give_the_errors_of_a_directory() {
    let script = r#"
python3 - <<'END'
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def say(name, call):
    try: print(name, call())
    except OSError as error: print(name, errno.errorcode[error.errno])
open("f", "w").write("x" * 100); last = 2**63 - 1
both, reads, writes = os.open("f", os.O_RDWR), os.open("f", os.O_RDONLY), os.open("f", os.O_WRONLY)
os.mkdir("d"); directory = os.open("d", os.O_RDONLY)
for at in [last, last - 9, -1]:
    say("pread", lambda: os.pread(both, 10, at)); say("pwrite", lambda: os.pwrite(both, b"0123456789", at))
    say("preadv", lambda: os.preadv(both, [bytearray(5), bytearray(5)], at))
    say("pwritev", lambda: os.pwritev(both, [b"01234", b"56789"], at))
    say("pread for writing", lambda: os.pread(writes, 10, at))
    say("pwrite for reading", lambda: os.pwrite(reads, b"0123456789", at))
    say("pread of a directory", lambda: os.pread(directory, 10, at))
say("sendfile", lambda: os.sendfile(both, both, last, 10))
if hasattr(os, "copy_file_range"): say("copy_file_range", lambda: os.copy_file_range(both, both, 10, last, 0))
else: print("copy_file_range 0")
name, path, here = "z" * 256, "./" * 2100, os.getcwd() + "/"
say("rename", lambda: os.rename("nothere", name)); say("rename", lambda: os.rename("f", name))
say("rename", lambda: os.rename("nothere", name + "/a")); say("rename", lambda: os.rename(name, "a"))
say("link", lambda: os.link("nothere", name)); say("link", lambda: os.link("f", name))
for one in [path, here + path]:
    for call in [os.stat, os.unlink, os.mkdir, os.rmdir, os.readlink, os.chdir, os.listdir, os.utime, os.statvfs]:
        say(call.__name__, lambda: call(one + "f"))
    say("open", lambda: os.open(one + "f", os.O_RDWR | os.O_CREAT)); say("access", lambda: os.access(one + "f", 0))
    say("rename", lambda: os.rename(one + "f", here + "q")); say("rename", lambda: os.rename("f", one + "q"))
    say("rename", lambda: os.rename("nothere", one + "q")); say("rename", lambda: os.rename("/nothere", one + "q"))
    say("link", lambda: os.link("f", one + "q")); say("link", lambda: os.link("nothere", one + "q"))
    say("symlink", lambda: os.symlink(one, "d")); say("symlink", lambda: os.symlink("f", one + "q"))
say("longest", lambda: os.stat("./" * 2047 + "f").st_size); say("symlink", lambda: os.symlink("x" * 4095, "s"))
def c(name, *arguments):
    ctypes.set_errno(0); print(name, getattr(libc, name)(*arguments), ctypes.get_errno())
room, none = ctypes.create_string_buffer(1000), ctypes.c_void_p(0)
for bad in [ctypes.c_void_p(2**64 - 1), none]:
    for name in ["unlink", "rmdir", "chdir"]: c(name, bad)
    for name in ["mkdir", "open", "chmod", "access", "creat", "stat", "statfs"]: c(name, bad, 0)
    for one, other in [(bad, b"q"), (b"f", bad), (b"nothere", bad), (bad, b"d")]:
        for name in ["rename", "link", "symlink"]: c(name, one, other)
    c("openat", directory, bad, 0); c("readlink", bad, room, 10); c("utimensat", -100, bad, none, 0)
    c("stat", b"f", bad); c("fstat", both, bad)
omit = (ctypes.c_long * 4)(0, (1 << 30) - 2, 0, (1 << 30) - 2); before = os.stat("f").st_ctime_ns
c("utimensat", -100, b"f", omit, 0); c("utimensat", -100, b"nothere", omit, 0)
print(os.stat("f").st_ctime_ns == before)
END
"#;
    compare(&["python3"], script);
}

#[test]
fn perl_works_as_in_a_directory() {
    compare(
        &["perl"],
        r#"
perl -e 'open(F,">","p") or die; print F "x" x 10000; close F; print -s "p","\n"; rename "p","q"; opendir(D,".");
print scalar(grep {/^q/} readdir D),"\n"; open(F,"+<","q"); seek(F,100,0); print F "HELLO"; seek(F,98,0);
read(F,$b,9); print "$b\n";
print join(",",(stat "q")[2,3,7]),"\n"; unlink "q"; print -e "q" ? 1 : 0,"\n"; print `echo sub > s; cat s`;
my @l=<*>; print "@l\n";
open(STDOUT,">","o"); print "to file\n"; $|=1; system("echo from child"); exec "cat", "s";'; cat o
perl -i -pe 's/u/U/' s; cat s; perl -ne 'print if /U/' s; perl -MFile::Copy -e 'copy("s","s2"); move("s2","s3")';
cat s3
perl -MFile::Find -e 'mkdir "d"; open F,">","d/f"; find(sub { print "$File::Find::name\n" }, "."); ' | sort
"#,
    );
}

#[test]
fn sqlite_works_as_in_a_directory() {
    compare(
        &["sqlite3"],
        r#"
for mode in delete truncate persist wal; do
sqlite3 $mode.db "pragma journal_mode=$mode; create table t(a integer primary key, b text); begin;
with recursive c(x) as (select 1 union all select x+1 from c where x<2000) insert into t select x,
'value '||x from c; commit;
select count(*), sum(a) from t; update t set b='z' where a%7=0; delete from t where a>1500; vacuum;
pragma integrity_check;"
sqlite3 $mode.db "insert into t(b) values('new'); select max(a) from t; pragma mmap_size=1000000;
select sum(length(b)) from t;
begin; update t set b='gone'; rollback; pragma integrity_check;"
sqlite3 $mode.db .dump | md5sum
for i in 1 2 3; do (for j in 1 2 3 4 5;
do sqlite3 -cmd '.timeout 20000' $mode.db "insert into t(b) values('p$i $j')"; done) & done; wait
sqlite3 $mode.db "select count(*) from t; pragma integrity_check;"; rm $mode.db
done
"#,
    );
}

#[test]
fn git_works_as_in_a_directory() {
    compare(
        &["git"],
        r#"
export GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_CONFIG_NOSYSTEM=1
mkdir g; cd g; git init -q -b main .; seq 1 1000 > f; mkdir s; echo x > s/y; git add .; git commit -q -m one;
git log --oneline
echo more >> f; git commit -qam two; git log --stat --oneline; git fsck 2>&1; git gc -q; git status;
git checkout -q HEAD~1; wc -l f
git checkout -q main; git diff HEAD~1 | tail -n3; git clone -q . ../h; cd ../h; git log --oneline; git mv f e;
git commit -qm three; git show --stat
cd ..; rm -rf g/.git/index h/.git
"#,
    );
}

#[test]
fn compilers_and_their_programs_work_as_in_a_directory() {
    compare(
        &["gcc"],
        r#"
cat > hello.c <<'END'
#include <stdio.h>
int main(int c, char **v) {
    FILE *f = fopen("out", "w");
    fprintf(f, "hello %s %d\n", v[1], c);
    return fclose(f);
}
END
gcc -c hello.c -o hello.o && gcc hello.o -o hello && ./hello world; cat out; "$HERE/hello" again; cat out;
PATH=$HERE:$PATH hello path; cat out
cat > lib.c <<'END'
int answer(void) { return 42; }
END
gcc -shared -fPIC lib.c -o libanswer.so; python3 -c 'import ctypes; print(ctypes.CDLL("./libanswer.so").answer())'
printf '#!/bin/sh\necho script "$1"\n' > s; chmod +x s; ./s arg; sh -c 'exec ./s exec'; printf 'echo plain\n' > t;
chmod +x t; sh -c ./t; chmod -x s; ./s
printf '#!%s/hello\n' "$HERE" > u; chmod +x u; ./u; cat out; find . -name s -exec sh {} found \; ; ls;
rm hello hello.o libanswer.so u out
"#,
    );
    compare(
        &["make", "gcc"],
        r#"
printf 'all: a.o b.o\n\tcat a.c b.c > all\n%%.o: %%.c\n\tgcc -c $< -o $@\n' > Makefile; echo 'int a;' > a.c;
echo 'int b;' > b.c
make; make; touch -d '2020-01-01 UTC' a.o b.o all b.c; make 2>&1 | head -n1; cat all; rm *.o
"#,
    );
}
