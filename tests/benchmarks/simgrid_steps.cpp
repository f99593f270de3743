// Rings of transfers, step by step, in SimGrid (C++, version 3.32 and later): the peer of the benchmark beside this file.
//
// Reads a case from standard input (numbers apart by blanks):
//   links:   how many, then B/s of each
//   latency: seconds of every path; half of it on each end's link, which is a link of its own in SimGrid's sense
//   hosts:   how many
//   routes:  how many, then for each: source, target, how many links, the links (first and last: those of the ends)
//   rings:   how many, then for each: rounds, bytes of a transfer, how many ranks, the ranks' hosts
// The host after the last one is the first.  A rank sends round k + 1 when it has sent and received round k.  Prints one
// line: wall seconds of the simulation alone, transfers, and the simulated seconds at which each ring is done.
#include <chrono>
#include <iomanip>
#include <iostream>
#include <simgrid/s4u.hpp>
#include <unordered_map>
#include <vector>

namespace sg4 = simgrid::s4u;

struct Ring {
  long rounds;
  uint64_t bytes;
  std::vector<sg4::Host*> hosts;
  std::vector<long> done;    // rounds that the hop from this rank to the next has finished
  std::vector<bool> sending;
  std::vector<sg4::CommPtr> latest, before; // SimGrid still holds a transfer in its hands when it tells of its end
  double end = 0;
};

static std::vector<Ring> rings;
static std::unordered_map<const sg4::Activity*, std::pair<size_t, size_t>> under_way; // ring and rank
static long transfers = 0;

static void attempt(size_t ring_number, size_t rank)
{
  Ring& ring = rings[ring_number];
  const size_t size = ring.hosts.size();
  const long done = ring.done[rank];
  if (ring.sending[rank] || done == ring.rounds || ring.done[(rank + size - 1) % size] < done)
    return;
  ring.sending[rank] = true;
  auto comm = sg4::Comm::sendto_init(ring.hosts[rank], ring.hosts[(rank + 1) % size])->set_payload_size(ring.bytes);
  under_way[comm.get()] = {ring_number, rank};
  ring.before[rank] = ring.latest[rank];
  ring.latest[rank] = comm;
  transfers++;
  comm->vetoable_start();
}

static void completed(sg4::Activity const& activity)
{
  const auto place = under_way.find(&activity);
  if (place == under_way.end())
    return;
  const auto [ring_number, rank] = place->second;
  under_way.erase(place);
  Ring& ring = rings[ring_number];
  ring.sending[rank] = false;
  ring.done[rank]++;
  ring.end = sg4::Engine::get_clock();
  attempt(ring_number, rank);
  attempt(ring_number, (rank + 1) % ring.hosts.size());
}

int main(int argc, char** argv)
{
  sg4::Engine engine(&argc, argv);
  auto* zone = sg4::create_full_zone("fabric");
  size_t count;
  std::vector<double> capacity;
  std::cin >> count;
  capacity.resize(count);
  for (auto& each : capacity)
    std::cin >> each;
  double latency;
  std::cin >> latency;
  std::vector<sg4::Host*> hosts;
  std::cin >> count;
  for (size_t i = 0; i < count; i++)
    hosts.push_back(zone->create_host("host" + std::to_string(i), 1e9)->seal());
  std::vector<sg4::Link*> links(capacity.size(), nullptr);
  std::cin >> count;
  for (size_t i = 0; i < count; i++) {
    size_t source, target, length;
    std::cin >> source >> target >> length;
    std::vector<sg4::LinkInRoute> route;
    for (size_t place = 0; place < length; place++) {
      size_t link;
      std::cin >> link;
      if (!links[link]) {
        links[link] = zone->create_link("link" + std::to_string(link), capacity[link]);
        links[link]->set_latency(place == 0 || place + 1 == length ? latency / 2 : 0.0)->seal();
      }
      route.emplace_back(links[link]);
    }
    zone->add_route(hosts[source]->get_netpoint(), hosts[target]->get_netpoint(), nullptr, nullptr, route, false);
  }
  zone->seal();
  std::cin >> count;
  for (size_t i = 0; i < count; i++) {
    Ring ring;
    size_t size;
    std::cin >> ring.rounds >> ring.bytes >> size;
    for (size_t place = 0; place < size; place++) {
      size_t host;
      std::cin >> host;
      ring.hosts.push_back(hosts[host]);
    }
    ring.done.assign(size, 0);
    ring.sending.assign(size, false);
    ring.latest.assign(size, nullptr);
    ring.before.assign(size, nullptr);
    rings.push_back(ring);
  }
  sg4::Activity::on_completion_cb(completed);
  const auto begun = std::chrono::steady_clock::now();
  for (size_t ring = 0; ring < rings.size(); ring++)
    for (size_t rank = 0; rank < rings[ring].hosts.size(); rank++)
      attempt(ring, rank);
  engine.run();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begun;
  std::cout << std::setprecision(17) << wall.count() << ' ' << transfers;
  for (const Ring& ring : rings)
    std::cout << ' ' << ring.end;
  std::cout << '\n';
}
