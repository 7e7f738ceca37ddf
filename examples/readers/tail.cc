// SPDX-License-Identifier: Apache-2.0
// The records of a feed as they come, one a line. A reader in C++17, no library to link:
//
//     c++ -std=c++17 -O2 -I "$(nodeagentctl ring include)" tail.cc -o tail
//     ./tail /run/nodeagent/ring.sock itch 100
#include <ring_reader.h>

#include <cinttypes>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

// Attached from construction to destruction; batches are copied out and only whole records are given.
class Ring {
public:
	Ring(const std::string &socket, const std::string &feed, const std::string &name)
	{
		char why[1024];
		if (nar_attach(&reader_, socket.c_str(), feed.c_str(), name.c_str(), NA_MODE_LOSSY, why, sizeof why) < 0)
			throw std::runtime_error(why);
	}
	Ring(const Ring &) = delete;
	Ring &operator=(const Ring &) = delete;
	~Ring() { nar_detach(&reader_); }

	// Whole records, oldest first; empty: none came within the timeout.
	const std::vector<na_tick> &next(std::uint64_t timeout_ns)
	{
		const na_tick *ticks;
		std::size_t count = nar_batch(&reader_, 256, &ticks);
		if (!count && nar_wait(&reader_, timeout_ns) == NA_WAIT_READY)
			count = nar_batch(&reader_, 256, &ticks);
		records_.assign(ticks, ticks + count);
		records_.erase(records_.begin(), records_.begin() + static_cast<std::ptrdiff_t>(nar_validate(&reader_)));
		nar_advance(&reader_, count);
		return records_;
	}

	std::string symbol(std::uint32_t instrument) const
	{
		na_symbol found;
		return nar_symbol(reader_.ticks, instrument, &found) == 0 ? std::string(found.name, found.length)
		                                                          : std::to_string(instrument);
	}
	std::uint64_t lost() const { return reader_.lost; }
	bool stale() const { return reader_.state == NA_READER_STALE; }

private:
	na_reader reader_;
	std::vector<na_tick> records_;
};

int main(int argc, char **argv)
{
	if (argc != 4) {
		std::cerr << "usage: " << argv[0] << " RING.SOCK FEED RECORDS\n";
		return 64;
	}
	try {
		Ring ring(argv[1], argv[2], "tail-cc");
		std::cout << "attached" << std::endl;
		for (std::uint64_t left = std::strtoull(argv[3], nullptr, 10); left;) {
			const auto &records = ring.next(1000000000);
			if (records.empty() && ring.stale())
				std::cerr << "STALE: the producer is silent\n";
			for (const auto &tick : records) {
				if (!left)
					break;
				left--;
				std::cout << tick.seq << ' ' << ring.symbol(tick.instrument) << ' ' << int(tick.kind) << ' '
				          << tick.price << ' ' << tick.size << '\n';
			}
		}
		std::cout << ring.lost() << " lost\n";
	} catch (const std::runtime_error &error) {
		std::cerr << "error: " << error.what() << '\n';
		return 3;
	}
	return 0;
}
