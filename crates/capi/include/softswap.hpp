/* softswap as a C++17 memory resource. Each block is a region of whole pages. For small blocks,
 * use it as the upstream of a std::pmr::unsynchronized_pool_resource or monotonic one. */
#ifndef SOFTSWAP_HPP
#define SOFTSWAP_HPP

#include "softswap.h"

#include <memory_resource>
#include <new>
#include <stdexcept>

namespace softswap {

/* A pool. The resource must outlive what is allocated from it. */
class memory_resource final : public std::pmr::memory_resource {
public:
    explicit memory_resource(const softswap_options &options)
    {
        if (softswap_pool_create(&options, &pool_) != 0)
            throw std::runtime_error(softswap_strerror_detail());
    }
    memory_resource(const memory_resource &) = delete;
    memory_resource &operator=(const memory_resource &) = delete;
    ~memory_resource() override { softswap_pool_destroy(pool_); }

    softswap_pool *pool() const noexcept { return pool_; }

private:
    static constexpr std::size_t page = 4096;

    void *do_allocate(std::size_t bytes, std::size_t alignment) override
    {
        void *address = nullptr;
        if (alignment > page || softswap_map(pool_, bytes == 0 ? 1 : bytes, &address) != 0)
            throw std::bad_alloc();
        return address;
    }
    void do_deallocate(void *address, std::size_t, std::size_t) override { softswap_unmap(address); }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
    {
        return this == &other;
    }

    softswap_pool *pool_ = nullptr;
};

} // namespace softswap

#endif
